// River as a contender: a process that is told what to do by lines of JSON on its input and answers each with one on its
// output, as src/contender/mod.rs says. It ends with its input.
package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

const (
	workersMax = 1000
	// How soon after a fetch the next one may follow: the shortest that River takes makes the latency shortest.
	fetchCooldown = time.Millisecond
	sessionsMax   = 10
	secret        = "0123456789abcdef0123456789abcdef"
)

type setup struct {
	socket, database string
	port, endpoints  int
	timeout          time.Duration
}

type command struct {
	Do        string `json:"do"`
	Load      load   `json:"load"`
	PerSecond int    `json:"per_second"`
	Log       string `json:"log"`
}

type answer struct {
	BegunNs int64  `json:"begun_ns"`
	DoneNs  int64  `json:"done_ns"`
	Error   string `json:"error,omitempty"`
}

type contender struct {
	setup    setup
	producer *pgxpool.Pool
	inserter *river.Client[pgx.Tx]
	workers  *pgxpool.Pool
	client   *river.Client[pgx.Tx]
}

func main() {
	var given setup
	var timeoutMs int
	flag.StringVar(&given.socket, "socket", "", "the folder of PostgreSQL's socket")
	flag.StringVar(&given.database, "database", "", "the database")
	flag.IntVar(&given.port, "port", 0, "the receiver's port")
	flag.IntVar(&given.endpoints, "endpoints", 0, "how many endpoints there are")
	flag.IntVar(&timeoutMs, "timeout-ms", 0, "how long a receiver may take")
	flag.Parse()
	given.timeout = time.Duration(timeoutMs) * time.Millisecond
	if err := run(context.Background(), given); err != nil {
		fmt.Fprintln(os.Stderr, "river:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, given setup) error {
	producer, err := connect(ctx, given, "producer", 8)
	if err != nil {
		return err
	}
	inserter, err := river.NewClient(riverpgxv5.New(producer), &river.Config{})
	if err != nil {
		return err
	}
	told := &contender{setup: given, producer: producer, inserter: inserter}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var next command
		if err := json.Unmarshal(lines.Bytes(), &next); err != nil {
			return fmt.Errorf("a command of a contender: %w", err)
		}
		said := answer{BegunNs: time.Now().UnixNano()}
		if err := told.obey(ctx, next); err != nil {
			said.Error = err.Error()
		}
		said.DoneNs = time.Now().UnixNano()
		line, err := json.Marshal(said)
		if err != nil {
			return err
		}
		fmt.Println(string(line))
	}
	return lines.Err()
}

func connect(ctx context.Context, given setup, name string, sessions int32) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(
		fmt.Sprintf("host=%s user=postgres dbname=%s application_name=%s", given.socket, given.database, name))
	if err != nil {
		return nil, err
	}
	config.MaxConns = sessions
	return pgxpool.NewWithConfig(ctx, config)
}

func (c *contender) obey(ctx context.Context, told command) error {
	switch told.Do {
	case "prepare":
		migrator, err := rivermigrate.New(riverpgxv5.New(c.producer), nil)
		if err != nil {
			return err
		}
		_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
		return err
	case "fill":
		return c.fill(ctx, told.Load)
	case "start":
		return c.start(ctx)
	case "produce":
		return c.produce(ctx, told.Load, told.PerSecond, told.Log)
	case "settle":
		return c.settle(ctx)
	case "stop":
		if err := c.client.StopAndCancel(ctx); err != nil {
			return err
		}
		c.workers.Close()
		c.producer.Close()
		return nil
	}
	return errors.New("there is no command " + told.Do)
}

func (c *contender) fill(ctx context.Context, all load) error {
	for first := 0; first < all.Deliveries; first += 1000 {
		var batch []river.InsertManyParams
		for n := first; n < min(first+1000, all.Deliveries); n++ {
			batch = append(batch, river.InsertManyParams{Args: all.item(n).payload(all.PayloadBytes)})
		}
		if _, err := c.inserter.InsertManyFast(ctx, batch); err != nil {
			return err
		}
	}
	return nil
}

func (c *contender) start(ctx context.Context) error {
	pool, err := connect(ctx, c.setup, "worker", sessionsMax)
	if err != nil {
		return err
	}
	c.workers = pool
	workers := river.NewWorkers()
	river.AddWorker(workers, newPoster(c.setup))
	c.client, err = river.NewClient(riverpgxv5.New(pool), &river.Config{
		FetchCooldown:     fetchCooldown,
		FetchPollInterval: 100 * time.Millisecond,
		// The shortest that it takes: longer than a job may run.
		JobTimeout:           c.setup.timeout + time.Second,
		RescueStuckJobsAfter: c.setup.timeout + 2*time.Second,
		Queues:               map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: workersMax}},
		Workers:              workers,
	})
	if err != nil {
		return err
	}
	return c.client.Start(ctx)
}

// An open loop: what is slow does not hold up what comes after it.
func (c *contender) produce(ctx context.Context, all load, perSecond int, log string) error {
	type commit struct {
		id   int
		ns   int64
		fail error
	}
	commits := make(chan commit, all.Deliveries)
	begun := time.Now()
	for n := range all.Deliveries {
		time.Sleep(time.Until(begun.Add(time.Duration(n) * time.Second / time.Duration(perSecond))))
		item := all.item(n)
		go func() {
			fail := c.enqueue(ctx, item.payload(all.PayloadBytes))
			commits <- commit{item.id, time.Now().UnixNano(), fail}
		}()
	}
	var lines bytes.Buffer
	for range all.Deliveries {
		done := <-commits
		if done.fail != nil {
			return done.fail
		}
		fmt.Fprintf(&lines, "%d %d\n", done.id, done.ns)
	}
	return os.WriteFile(log, lines.Bytes(), 0o600)
}

func (c *contender) enqueue(ctx context.Context, job deliver) error {
	transaction, err := c.producer.Begin(ctx)
	if err != nil {
		return err
	}
	defer transaction.Rollback(ctx)
	if _, err := c.inserter.InsertTx(ctx, transaction, job, nil); err != nil {
		return err
	}
	return transaction.Commit(ctx)
}

func (c *contender) settle(ctx context.Context) error {
	sql := "SELECT EXISTS (SELECT FROM river_job WHERE state IN ('available', 'pending', 'retryable', 'running', 'scheduled'))"
	for {
		var pending bool
		if err := c.producer.QueryRow(ctx, sql).Scan(&pending); err != nil || !pending {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// poster is the worker: it signs the body and sends it.
type poster struct {
	river.WorkerDefaults[deliver]
	client *http.Client
	port   int
}

func newPoster(given setup) *poster {
	transport := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: given.timeout}).DialContext,
		MaxIdleConns:        2 * workersMax,
		MaxIdleConnsPerHost: workersMax,
		DisableCompression:  true,
	}
	return &poster{client: &http.Client{Transport: transport, Timeout: given.timeout}, port: given.port}
}

func (p *poster) Work(ctx context.Context, job *river.Job[deliver]) error {
	body := job.EncodedArgs
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write(body)
	url := fmt.Sprintf("http://%s:%d/", address(job.Args.Endpoint), p.port)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("X-Signature", "sha256="+hex.EncodeToString(mac.Sum(nil)))
	response, err := p.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return err
	}
	if response.StatusCode/100 != 2 {
		return fmt.Errorf("answered %s", response.Status)
	}
	return nil
}
