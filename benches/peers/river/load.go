package main

import (
	"fmt"
	"strings"
	"time"
)

// load is what is delivered, as src/load.rs says.
type load struct {
	FirstID       int `json:"first_id"`
	Deliveries    int `json:"deliveries"`
	Lanes         int `json:"lanes"`
	Endpoints     int `json:"endpoints"`
	PayloadBytes  int `json:"payload_bytes"`
	FirstLane     int `json:"first_lane"`
	FirstEndpoint int `json:"first_endpoint"`
}

type item struct {
	id, lane, endpoint, seq int
}

func (l load) item(n int) item {
	id := l.FirstID + n
	place := id % l.Lanes
	return item{id: id, lane: l.FirstLane + place, endpoint: l.FirstEndpoint + place%l.Endpoints, seq: id / l.Lanes}
}

// deliver is a job; its JSON is the body that is sent.
type deliver struct {
	At       int64  `json:"at"`
	Endpoint int    `json:"ep"`
	ID       int    `json:"id"`
	Lane     int    `json:"ln"`
	Seq      int    `json:"sq"`
	Text     string `json:"text"`
}

func (deliver) Kind() string { return "deliver" }

const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"

func (i item) payload(size int) deliver {
	job := deliver{At: time.Now().UnixNano(), Endpoint: i.endpoint, ID: i.id, Lane: i.lane, Seq: i.seq}
	head := fmt.Sprintf(`{"at":%d,"ep":%d,"id":%d,"ln":%d,"sq":%d,"text":""}`, job.At, job.Endpoint, job.ID, job.Lane, job.Seq)
	var text strings.Builder
	state := uint64(i.id)*0x9E3779B97F4A7C15 | 1
	for range max(0, size-len(head)) {
		state ^= state << 13
		state ^= state >> 7
		state ^= state << 17
		text.WriteByte(letters[state&63])
	}
	job.Text = text.String()
	return job
}

// address is where an endpoint listens.
func address(endpoint int) string {
	place := endpoint + 1
	return fmt.Sprintf("127.0.%d.%d", place>>8, place&255)
}
