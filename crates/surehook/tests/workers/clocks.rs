//! Nodes whose clocks are ten minutes off: nothing that is decided, and nothing that a receiver checks, goes by them.
//!
//! The library below is put before the C library's clock in the processes under test alone. The monotonic clock is left.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use surehook_testkit::receiver::{Answer, Receiver};

use super::yard::Yard;

const SHIFT: &str = r#"
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long shift(void) { const char *s = getenv("CLOCK_SHIFT_S"); return s ? atol(s) : 0; }
int clock_gettime(clockid_t clock, struct timespec *t) {
    int result = syscall(SYS_clock_gettime, clock, t);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) t->tv_sec += shift();
    return result;
}
int gettimeofday(struct timeval *restrict t, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    t->tv_sec = now.tv_sec;
    t->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *t) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (t) *t = now.tv_sec;
    return now.tv_sec;
}
"#;

fn shift_library(yard: &Yard) -> PathBuf {
    let (source, library) = (yard.world.data().join("shift.c"), yard.world.data().join("shift.so"));
    std::fs::write(&source, SHIFT).unwrap();
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let built = Command::new(compiler).args(["-shared", "-fPIC", "-O1", "-o"]).args([&library, &source]).status();
    assert!(built.unwrap().success());
    library
}

/// How far the clock of a process with this environment is ahead of ours.
fn seen_by_a_process(environment: &[(&str, &str)]) -> i64 {
    let date = |environment: &[(&str, &str)]| {
        let output = Command::new("date").arg("+%s").envs(environment.iter().copied()).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().parse::<i64>().unwrap()
    };
    date(environment) - date(&[])
}

#[tokio::test]
async fn ten_minutes_off_in_either_direction_changes_nothing() {
    let yard = Yard::new().await;
    let library = shift_library(&yard);
    let library = library.to_str().unwrap();
    let (ahead, behind) =
        ([("LD_PRELOAD", library), ("CLOCK_SHIFT_S", "600")], [("LD_PRELOAD", library), ("CLOCK_SHIFT_S", "-600")]);
    assert!((590..=610).contains(&seen_by_a_process(&ahead)) && (-610..=-590).contains(&seen_by_a_process(&behind)));

    // Each first try is refused for a while, so that there are retries to be scheduled.
    let mut tries: HashMap<String, usize> = HashMap::new();
    let receiver = Receiver::start(move |request| {
        let tries = tries.entry(request.text().to_owned()).or_default();
        *tries += 1;
        if *tries <= 2 { Answer::status(503) } else { Answer::status(200) }
    })
    .await;
    yard.endpoint(&receiver.url("/"), Duration::from_secs(30)).await;
    let mut workers = [yard.worker_with(&ahead), yard.worker_with(&behind), yard.worker()];
    yard.alive(3).await;
    assert!(yard.log().contains("delivering"));
    let begun = Instant::now();
    yard.backlog(60, 3).await;
    yard.drained().await;
    yard.all_published(180).await;
    assert!(begun.elapsed() < Duration::from_secs(60), "a clock that decides would make a retry wait for ten minutes");
    yard.nobody_was_declared_dead().await;
    assert_eq!(yard.count("SELECT count(DISTINCT worker) FROM outbox_attempts").await, 3, "each had its share");

    let now: i64 = yard.count("SELECT extract(epoch FROM clock_timestamp())::bigint").await;
    for request in receiver.requests() {
        let stamp: i64 = request.header("webhook-timestamp").unwrap().parse().unwrap();
        assert!((now - 120..=now + 5).contains(&stamp), "{stamp} is not the database's time, {now}");
    }
    let strange = "SELECT count(*) FROM outbox_attempts WHERE started_at NOT BETWEEN created_at - interval '1 minute' AND created_at";
    assert_eq!(yard.count(strange).await, 0, "attempts bear the database's time");

    // A takeover is judged by a counter and by what time it takes, not by what time it is.
    receiver.answer_all(Answer::Hang);
    workers[2].signal("STOP");
    yard.until("SELECT count(*) FROM outbox_workers", 2).await;
    workers[2].signal("CONT");
    yard.alive(3).await;
    for worker in &mut workers {
        worker.signal("TERM");
        assert_eq!(worker.ended().await, Some(0));
    }
}
