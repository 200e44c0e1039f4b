//! The receiver with real HTTP, a real PostgreSQL and real builds.
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests may panic, look at the clock and speak SQL")]

mod receiver_world;

use std::path::Path;
use std::time::{Duration, Instant};

use receiver_world::{COMMIT, PATIENCE, Request, World, ZEROS, body, push};
use surehook::receive::{Receiver, ReceiverError};
use surehook::store::inbox;
use surehook_testkit::eventually;
use surehook_testkit::postgres::{Cluster, Settings};
use surehook_webhook::envelope::{WEBHOOK_ID, WEBHOOK_SIGNATURE, WEBHOOK_TIMESTAMP, X_SIGNATURE, X_WEBHOOK_ID};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

#[tokio::test]
async fn a_new_delivery_is_accepted_and_built_with_the_push_as_variables_and_input() {
    let world = World::new().await;
    let receiver =
        world.receiver("env | grep ^SUREHOOK_ | sort >$HERE/env; cat >$HERE/stdin; echo out; echo err >&2; pwd").await;
    let body = body(&format!(
        r#","event_id":"e-1","sequence":7,"sequence_epoch":"ep","repository":{{"id":"r-1","name":"team/app"}},"pusher":{{"name":"eve"}},"head_commit":{{"id":"{COMMIT}"}},"forced":false,"message":"é \n{}""#,
        "x".repeat(200_000)
    ));
    let id = Uuid::new_v4();
    let answer = Request::signed(id, body.as_bytes()).send(receiver.address);
    assert_eq!((answer.status, answer.json["status"].as_str().unwrap()), (202, "accepted"));
    let build_id = answer.json["build"].as_i64().unwrap();
    let build = world.ended(build_id).await;
    assert_eq!((build.state.as_str(), build.exit_code, build.attempt), ("finished", Some(0), 1));
    assert_eq!((build.repository.as_deref(), build.commit.as_deref()), (Some("team/app"), Some(COMMIT)));
    assert!(build.duration_ms.is_some() && build.started_at.unwrap() <= build.finished_at.unwrap());
    assert_eq!(world.text("stdin"), body);
    let log = std::fs::read_to_string(build.log.unwrap()).unwrap();
    assert_eq!(log, format!("out\nerr\n{}\n", std::env::current_dir().unwrap().display()));

    let environment = world.text("env");
    let folder = world.path("receive/builds").join(build_id.to_string());
    for line in [
        format!("SUREHOOK_WEBHOOK_ID={id}"),
        format!("SUREHOOK_BUILD={build_id}"),
        format!("SUREHOOK_BUILD_FOLDER={}", folder.display()),
        format!("SUREHOOK_BEFORE={ZEROS}"),
        format!("SUREHOOK_AFTER={COMMIT}"),
        format!("SUREHOOK_COMMIT={COMMIT}"),
        "SUREHOOK_REF=refs/heads/main".into(),
        "SUREHOOK_BRANCH=main".into(),
        "SUREHOOK_CREATED=true".into(),
        "SUREHOOK_DELETED=false".into(),
        "SUREHOOK_FORCED=false".into(),
        "SUREHOOK_EVENT_ID=e-1".into(),
        "SUREHOOK_REPOSITORY=team/app".into(),
        "SUREHOOK_REPOSITORY_ID=r-1".into(),
        "SUREHOOK_PUSHER=eve".into(),
        "SUREHOOK_SEQUENCE=7".into(),
        "SUREHOOK_SEQUENCE_EPOCH=ep".into(),
        "SUREHOOK_ATTEMPT=1".into(),
    ] {
        assert!(environment.lines().any(|known| known == line), "{line} is missing in\n{environment}");
    }
    assert!(!environment.contains("SUREHOOK_TAG="));
}

#[tokio::test]
async fn a_delivery_that_was_seen_starts_nothing_with_the_same_bytes_or_others() {
    let world = World::new().await;
    let receiver = world.receiver("echo >>$HERE/runs").await;
    let id = Uuid::new_v4();
    let first = Request::signed(id, push().as_bytes()).send(receiver.address);
    assert_eq!(first.status, 202);
    for (body, same) in [(push(), true), (body(r#","n":2"#), false)] {
        let again = Request::signed(id, body.as_bytes()).send(receiver.address);
        assert_eq!((again.status, again.json["same_body"].as_bool()), (409, Some(same)));
        assert_eq!(again.json["build"], first.json["build"]);
    }
    world.ended(1).await;
    assert_eq!(inbox::list(&world.database, 10).await.unwrap().len(), 1);
    assert_eq!(world.text("runs"), "\n");
}

#[tokio::test]
async fn of_many_deliveries_of_one_id_at_once_exactly_one_is_accepted() {
    let world = World::new().await;
    let receiver = world.receiver("true").await;
    for _ in 0..5 {
        let id = Uuid::new_v4();
        let statuses: Vec<u16> = std::thread::scope(|scope| {
            let send = || Request::signed(id, push().as_bytes()).send(receiver.address).status;
            let sending: Vec<_> = (0..16).map(|_| scope.spawn(send)).collect();
            sending.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert_eq!(statuses.iter().filter(|status| **status == 202).count(), 1, "{statuses:?}");
        assert_eq!(statuses.iter().filter(|status| **status == 409).count(), 15, "{statuses:?}");
    }
    assert_eq!(inbox::list(&world.database, 100).await.unwrap().len(), 5);
}

#[tokio::test]
async fn odd_but_honest_deliveries_are_accepted() {
    let world = World::new().await;
    let receiver = world.receiver("true").await;
    for odd in [
        body(r#","message":"ship it 🚀 é""#),
        format!("{}\n", push()),
        format!("\u{feff}{}", push()),
        push().replace(',', ",\r\n"),
        body(&format!(r#","message":"{}""#, "x".repeat(4_000_000))),
        body(r#","pusher":{"name":"nul \u0000"},"repository":{"name":"\u0000"},"event_id":"\u0000""#),
    ] {
        for content_type in ["application/json", "application/json; charset=utf-8", "Application/JSON ;x=y"] {
            let request = Request::signed(Uuid::new_v4(), odd.as_bytes()).with("content-type", content_type);
            let answer = request.with_path("/any/path?x=y").send(receiver.address);
            assert_eq!(answer.status, 202, "{odd:.200}: {answer:?}");
        }
    }
}

#[tokio::test]
async fn what_is_not_believed_is_refused_and_leaves_nothing() {
    let world = World::new().await;
    let receiver = world.receiver("true").await;
    let body = push();
    let good = || Request::signed(Uuid::new_v4(), body.as_bytes());
    let signature = good().header(X_SIGNATURE);
    let refused: Vec<(u16, Request)> = vec![
        (401, good().with_body(body.replace("main", "mein").as_bytes())),
        (401, good().with(X_SIGNATURE, &signature.to_uppercase())),
        (401, good().with(X_SIGNATURE, &format!("sha256={signature}"))),
        (401, good().with(X_SIGNATURE, "sha256=")),
        (401, good().with(X_SIGNATURE, "")),
        (401, good().with(X_SIGNATURE, &signature[1..])),
        (401, good().with(X_SIGNATURE, "\u{1f680}")),
        (401, good().without(X_SIGNATURE)),
        (401, good().without(X_WEBHOOK_ID)),
        (401, good().without(WEBHOOK_ID)),
        (401, good().without(WEBHOOK_TIMESTAMP)),
        (401, good().without(WEBHOOK_SIGNATURE)),
        (401, good().twice(X_SIGNATURE)),
        (401, good().twice(WEBHOOK_SIGNATURE)),
        (401, good().twice(X_WEBHOOK_ID)),
        (401, good().with(X_WEBHOOK_ID, "another")),
        (401, good().with(WEBHOOK_TIMESTAMP, "1000000000")),
        (401, Request::signed_at(Uuid::new_v4(), body.as_bytes(), 1_000_000_000)),
        (400, Request::signed(Uuid::new_v4(), b"")),
        (400, Request::signed(Uuid::new_v4(), b"\xff\xfe{}")),
        (400, Request::signed(Uuid::new_v4(), b"{}")),
        (400, Request::signed(Uuid::new_v4(), b"[1,2")),
        (400, Request::signed(Uuid::new_v4(), "[".repeat(50_000).as_bytes())),
        (400, Request::signed(Uuid::new_v4(), body.replace(COMMIT, "HEAD").as_bytes())),
        (415, good().with("content-type", "text/plain")),
        (415, good().without("content-type")),
        (405, good().with_method("GET")),
        (405, good().with_method("PUT")),
    ];
    for (status, request) in refused {
        let answer = request.send(receiver.address);
        assert_eq!(answer.status, status, "{request:?}: {answer:?}");
        assert_eq!(answer.json["status"], "refused");
        assert_eq!(answer.header("allow").as_deref(), (status == 405).then_some("POST"));
    }
    assert!(inbox::list(&world.database, 10).await.unwrap().is_empty());
    assert_eq!(good().send(receiver.address).status, 202);
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_before_its_signature_is_looked_at() {
    let world = World::new().await;
    let receiver = world.receiver_with("true", |settings| settings.body_bytes_max = 100_000).await;
    let fitting = body(&format!(r#","x":"{}""#, "x".repeat(99_000)));
    let padding = 100_000 - fitting.len();
    let fitting = fitting.replacen('x', &"x".repeat(padding + 1), 1);
    assert_eq!(fitting.len(), 100_000);
    let over = format!("{fitting} ");
    for chunked in [false, true] {
        let send = |body: &str| {
            let request = Request::signed(Uuid::new_v4(), body.as_bytes()).with(X_SIGNATURE, "wrong");
            Request { chunked, ..request }.send(receiver.address).status
        };
        assert_eq!(send(&fitting), 401);
        assert_eq!(send(&over), 413);
        assert_eq!(send(&"x".repeat(10_000_000)), 413);
    }
}

#[tokio::test]
async fn untimed_deliveries_are_accepted_only_where_that_is_wanted() {
    let world = World::new().await;
    let untimed = || {
        let request = Request::signed(Uuid::new_v4(), push().as_bytes());
        request.without(WEBHOOK_ID).without(WEBHOOK_TIMESTAMP).without(WEBHOOK_SIGNATURE)
    };
    let strict = world.receiver("true").await;
    assert_eq!(untimed().send(strict.address).status, 401);
    strict.stop().await;
    let lenient = world.receiver_with("true", |settings| settings.accept_untimed = true).await;
    assert_eq!(untimed().send(lenient.address).status, 202);
}

#[tokio::test]
async fn while_the_database_is_away_senders_are_asked_to_come_again() {
    let cluster = Cluster::start(Settings::default()).await;
    let world = World::at(&cluster.url("postgres"));
    let receiver = world.receiver("echo >>$HERE/runs; while [ ! -e $HERE/go ]; do sleep 0.02; done").await;
    let id = Uuid::new_v4();
    assert_eq!(Request::signed(id, push().as_bytes()).send(receiver.address).status, 202);
    world.appears("runs").await;
    cluster.stop().await;
    let late = Uuid::new_v4();
    let answer = Request::signed(late, push().as_bytes()).send(receiver.address);
    assert_eq!((answer.status, answer.header("retry-after").is_some()), (503, true));
    assert_eq!(Request::signed(late, b"{}").with(X_SIGNATURE, "").send(receiver.address).status, 401);
    // The first build ends while nobody can record it.
    std::fs::write(world.path("go"), "").unwrap();
    cluster.resume().await;
    eventually(PATIENCE, async || {
        let answer = Request::signed(late, push().as_bytes()).send(receiver.address);
        [202, 409].contains(&answer.status).then_some(())
    })
    .await;
    for build_id in [1, 2] {
        let build = eventually(PATIENCE, async || {
            inbox::find(&world.database, build_id).await.ok().flatten().filter(|build| build.state == "finished")
        })
        .await;
        assert_eq!((build.exit_code, build.attempt), (Some(0), 1));
    }
    assert_eq!(world.text("runs"), "\n\n");
}

#[tokio::test]
async fn a_build_outlives_its_receiver_and_the_next_one_takes_it_up() {
    let exec = "echo $SUREHOOK_ATTEMPT >>$HERE/runs; while [ ! -e $HERE/go ]; do sleep 0.02; done; exit 3";
    for ends_while_away in [true, false] {
        let world = World::new().await;
        let first = world.receiver(exec).await;
        assert_eq!(Request::signed(Uuid::new_v4(), push().as_bytes()).send(first.address).status, 202);
        world.appears("runs").await;
        first.kill();
        let go = || std::fs::write(world.path("go"), "").unwrap();
        if ends_while_away {
            go();
            world.appears("receive/builds/1/result").await;
        }
        let second = world.receiver("echo wrong >>$HERE/runs").await;
        if !ends_while_away {
            assert_eq!(inbox::find(&world.database, 1).await.unwrap().unwrap().state, "running");
            go();
        }
        let build = world.ended(1).await;
        assert_eq!((build.state.as_str(), build.exit_code, build.attempt), ("finished", Some(3), 1));
        assert_eq!(world.text("runs"), "1\n");
        second.stop().await;
    }
}

#[tokio::test]
async fn a_receiver_that_is_asked_to_stop_leaves_builds_running_and_is_gone_at_once() {
    let world = World::new().await;
    let exec = "echo >>$HERE/runs; while [ ! -e $HERE/go ]; do sleep 0.02; done";
    let receiver = world.receiver(exec).await;
    for _ in 0..3 {
        assert_eq!(Request::signed(Uuid::new_v4(), push().as_bytes()).send(receiver.address).status, 202);
    }
    world.appears("runs").await;
    let asked = Instant::now();
    receiver.stop().await;
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    std::fs::write(world.path("go"), "").unwrap();
    let next = world.receiver(exec).await;
    for build_id in 1..=3 {
        let build = world.ended(build_id).await;
        assert_eq!((build.exit_code, build.attempt), (Some(0), 1));
    }
    assert_eq!(world.text("runs"), "\n\n\n");
    next.stop().await;
}

#[tokio::test]
async fn a_build_whose_runner_is_killed_runs_again_and_what_was_left_of_it_is_ended_first() {
    let world = World::new().await;
    let exec = "echo $SUREHOOK_ATTEMPT >>$HERE/runs; [ $SUREHOOK_ATTEMPT = 1 ] || exit 5
        setsid sh -c 'echo $$ >$HERE/left; exec sleep 1000' & while [ ! -s $HERE/left ]; do sleep 0.02; done
        echo $PPID >$HERE/runner.new; mv $HERE/runner.new $HERE/runner; wait";
    let receiver = world.receiver(exec).await;
    assert_eq!(Request::signed(Uuid::new_v4(), push().as_bytes()).send(receiver.address).status, 202);
    world.appears("runner").await;
    let runner = rustix::process::Pid::from_raw(world.text("runner").trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(runner, rustix::process::Signal::KILL).unwrap();
    let build = world.ended(1).await;
    assert_eq!((build.state.as_str(), build.exit_code, build.attempt), ("finished", Some(5), 2));
    assert_eq!(world.text("runs"), "1\n2\n");
    assert!(std::fs::read_to_string(build.log.unwrap()).unwrap().contains("surehook: attempt 2"));
    let left = Path::new("/proc").join(world.text("left").trim()).join("cmdline");
    assert!(!std::fs::read_to_string(left).unwrap_or_default().contains("sleep"));
}

#[tokio::test]
async fn a_build_whose_runner_vanishes_each_time_is_given_up_visibly() {
    let world = World::new().await;
    let receiver = world.receiver_with("true", |settings| settings.runner.program = "/bin/false".into()).await;
    assert_eq!(Request::signed(Uuid::new_v4(), push().as_bytes()).send(receiver.address).status, 202);
    let build = world.ended(1).await;
    assert_eq!((build.state.as_str(), build.exit_code, build.attempt), ("lost", None, 5));
    assert!(build.note.unwrap().contains("vanished"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whenever_the_receiver_is_killed_each_push_is_built_once() {
    const PUSHES: u32 = 40;
    const KILLS: u32 = 15;
    let world = World::new().await;
    let exec = "echo $SUREHOOK_WEBHOOK_ID >>$HERE/runs; sleep 0.0$(($SUREHOOK_BUILD % 10))";
    let address = std::sync::Mutex::new(None);
    let accepted = std::sync::atomic::AtomicU32::new(0);
    let ids: Vec<Uuid> = (0..PUSHES).map(|_| Uuid::new_v4()).collect();
    let mut receiver = world.receiver_with(exec, |settings| settings.jobs = 3).await;
    *address.lock().unwrap() = Some(receiver.address);
    let last = std::thread::scope(|scope| {
        scope.spawn(|| {
            for (nth, id) in ids.iter().enumerate() {
                let body = body(&format!(r#","repository":{{"id":"{}"}}"#, nth % 5));
                // As a sender does: until somebody says that it is there.
                loop {
                    let current = address.lock().unwrap().unwrap();
                    match Request::signed(*id, body.as_bytes()).try_send(current).map(|answer| answer.status) {
                        Some(202 | 409) => break,
                        _ => std::thread::yield_now(),
                    }
                }
                accepted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        });
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async {
                for kill in 1..=KILLS {
                    eventually(PATIENCE, async || {
                        let so_far = accepted.load(std::sync::atomic::Ordering::Relaxed);
                        (so_far >= kill * PUSHES / (KILLS + 1)).then_some(())
                    })
                    .await;
                    receiver.kill();
                    receiver = world.receiver_with(exec, |settings| settings.jobs = 3).await;
                    *address.lock().unwrap() = Some(receiver.address);
                }
                receiver
            })
        })
    });
    for build_id in 1..=i64::from(PUSHES) {
        let build = world.ended(build_id).await;
        assert_eq!((build.state.as_str(), build.exit_code), ("finished", Some(0)), "{build:?}");
    }
    let mut runs: Vec<Uuid> = world.text("runs").lines().map(|line| line.parse().unwrap()).collect();
    let mut wanted = ids;
    runs.sort();
    wanted.sort();
    assert_eq!(runs, wanted);
    last.stop().await;
}

#[tokio::test]
async fn how_a_command_ends_is_kept() {
    let world = World::new().await;
    let receiver = world
        .receiver_with(r#"eval "$(cat | sed 's/.*"run":"\([^"]*\)".*/\1/')""#, |settings| {
            settings.timeout = Some(Duration::from_secs(3));
            settings.log_bytes_max = 2_000_000;
        })
        .await;
    let runs = ["exit 7", "kill -9 $$", "sleep 1000", "sleep 1000 & exit 0", "yes", "no-such-command-anywhere"];
    for (nth, run) in runs.iter().enumerate() {
        // Each in a repository of its own, so that they need not wait for each other.
        let body = body(&format!(r#","repository":{{"id":"{nth}"}},"run":"{run}""#));
        assert_eq!(Request::signed(Uuid::new_v4(), body.as_bytes()).send(receiver.address).status, 202);
    }
    let mut builds = Vec::new();
    for build_id in 1..=6 {
        builds.push(world.ended(build_id).await);
    }
    let outcomes: Vec<_> = builds.iter().map(|build| (build.exit_code, build.exit_signal, build.timed_out)).collect();
    assert_eq!(
        outcomes,
        [
            (Some(7), None, false),
            (None, Some(9), false),
            (None, Some(15), true),
            (Some(0), None, false),
            (None, Some(15), false),
            (Some(127), None, false),
        ]
    );
    assert!(builds[2].note.as_ref().unwrap().contains("3000 ms"));
    assert!(builds[4].note.as_ref().unwrap().contains("log"));
}

#[tokio::test]
async fn a_big_log_is_kept_whole() {
    let world = World::new().await;
    let receiver = world.receiver("head -c 30000000 /dev/zero; head -c 30000000 /dev/zero >&2").await;
    assert_eq!(Request::signed(Uuid::new_v4(), push().as_bytes()).send(receiver.address).status, 202);
    let build = world.ended(1).await;
    assert_eq!(build.exit_code, Some(0));
    assert_eq!(std::fs::metadata(build.log.unwrap()).unwrap().len(), 60_000_000);
}

#[tokio::test]
async fn builds_of_one_repository_run_one_after_another_in_order_and_others_beside_them() {
    let world = World::new().await;
    // Each build of the repository "a" wants the place for itself; "b" ends only when it has seen one of "a" end.
    let exec = "case $SUREHOOK_REPOSITORY in
        a) mkdir $HERE/place || exit 1; echo $SUREHOOK_SEQUENCE >>$HERE/order; sleep 0.02; rmdir $HERE/place;;
        b) while [ $(wc -l <$HERE/order) -lt 12 ]; do sleep 0.02; done;; esac";
    std::fs::write(world.path("order"), "").unwrap();
    let receiver = world.receiver_with(exec, |settings| settings.jobs = 4).await;
    for sequence in 0..12 {
        let name = if sequence == 5 { "b" } else { "a" };
        let numbers = if sequence == 5 { vec![5, 5] } else { vec![sequence] };
        for sequence in numbers {
            let body = body(&format!(r#","sequence":{sequence},"repository":{{"name":"{name}"}}"#));
            assert_eq!(Request::signed(Uuid::new_v4(), body.as_bytes()).send(receiver.address).status, 202);
        }
    }
    let last = body(r#","sequence":12,"repository":{"name":"a"}"#);
    assert_eq!(Request::signed(Uuid::new_v4(), last.as_bytes()).send(receiver.address).status, 202);
    for build_id in 1..=14 {
        assert_eq!(world.ended(build_id).await.exit_code, Some(0), "{build_id}");
    }
    assert_eq!(world.text("order"), "0\n1\n2\n3\n4\n6\n7\n8\n9\n10\n11\n12\n");
}

#[tokio::test]
async fn a_folder_left_by_another_database_is_not_taken_for_a_result() {
    let world = World::new().await;
    let receiver = world.receiver("exit 4").await;
    assert_eq!(Request::signed(Uuid::new_v4(), push().as_bytes()).send(receiver.address).status, 202);
    assert_eq!(world.ended(1).await.exit_code, Some(4));
    receiver.stop().await;
    let World { folder, .. } = world;
    let world = World { folder, ..World::new().await };
    let receiver = world.receiver("echo $SUREHOOK_ATTEMPT").await;
    assert_eq!(Request::signed(Uuid::new_v4(), push().as_bytes()).send(receiver.address).status, 202);
    let build = world.ended(1).await;
    assert_eq!((build.exit_code, build.attempt), (Some(0), 1));
    assert_eq!(std::fs::read_to_string(build.log.unwrap()).unwrap(), "1\n");
}

#[tokio::test]
async fn two_receivers_do_not_share_a_data_directory() {
    let world = World::new().await;
    let receiver = world.receiver("true").await;
    let settings = world.settings("true").await;
    let second = Receiver::start(settings, CancellationToken::new()).await;
    assert!(matches!(second.err(), Some(ReceiverError::AlreadyRunning(_))));
    receiver.stop().await;
}

#[tokio::test]
async fn every_column_is_explained_in_the_schema() {
    let world = World::new().await;
    let session = world.database.session().await.unwrap();
    let silent = session
        .query(
            "SELECT attname FROM pg_attribute WHERE attrelid = 'inbox_builds'::regclass AND attnum > 0
                AND col_description(attrelid, attnum) IS NULL",
            &[],
        )
        .await
        .unwrap();
    assert!(silent.is_empty(), "{silent:?}");
}
