//! What goes wrong on the way delays an event or sets one ref aside; it loses, doubles and invents nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use surehook::capture::announce::{AnnounceError, Announced, Announcer, Hints};
use surehook::payload::native::event_id;
use surehook::store::repositories::RepositoryState;

use crate::support::{World, ZEROS, step};

fn must_be_send<T: Send>(value: T) -> T {
    value
}

#[tokio::test]
async fn what_was_rolled_back_is_told_later_with_the_same_id() {
    let world = World::new().await;
    let repo = world.repository("app").await;
    let (_, a) = world.seeded(&repo).await;
    world
        .execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no' USING ERRCODE = '57014'; END $$;
             CREATE CONSTRAINT TRIGGER refuse AFTER UPDATE OF last_sequence ON repositories DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION refuse()",
        )
        .await;
    let error = must_be_send(world.announcer.announce(repo.id, Hints::default())).await.unwrap_err();
    assert!(matches!(error, AnnounceError::Database(_)), "{error}");
    assert_eq!(world.events(&repo).await.len(), 0);
    assert_eq!(world.row(&repo).await.last_sequence, 0);
    world.execute("DROP TRIGGER refuse ON repositories").await;
    assert_eq!(world.announce(&repo).await.events, 1);
    let after = gix::ObjectId::from_hex(a.as_bytes()).unwrap();
    let expected = event_id(repo.id, b"refs/heads/main", 1, after.kind().null(), after);
    assert_eq!(world.events(&repo).await[0].id, expected);
}

#[tokio::test]
async fn an_announce_that_is_given_up_anywhere_is_made_up_for() {
    let world = World::new().await;
    let repo = world.repository("app").await;
    let (work, _) = world.seeded(&repo).await;
    for round in 0..12_u64 {
        work.commit("file", &round.to_string()).await;
        work.ok(["push", "--quiet", "origin", "HEAD:refs/heads/main"]).await;
        let announce = world.announcer.announce(repo.id, Hints::default());
        let _ = tokio::time::timeout(Duration::from_millis(round * 2), announce).await;
    }
    world.announce(&repo).await;
    let steps = world.steps(&repo).await;
    assert_eq!(steps.len(), 13);
    assert!(steps.windows(2).all(|pair| pair[0].2 == pair[1].1), "{steps:?}");
}

#[tokio::test]
async fn two_nodes_that_announce_the_same_repository_tell_each_step_once() {
    let world = World::new().await;
    let repo = world.repository("app").await;
    let (work, _) = world.seeded(&repo).await;
    let other = world.another_announcer();
    let mut told = 0;
    for round in 0..15 {
        work.commit("file", &round.to_string()).await;
        work.ok(["push", "--quiet", "origin", "HEAD:refs/heads/main", &format!("HEAD:refs/heads/b{round}")]).await;
        let announce = async |announcer: &Announcer| announcer.announce(repo.id, Hints::default()).await.unwrap();
        let (a, b, c): (Announced, Announced, Announced) =
            tokio::join!(announce(&world.announcer), announce(&other), announce(&other));
        // Calls that shared a run have the same outcome.
        told += a.events + b.events.max(c.events);
    }
    let steps = world.steps(&repo).await;
    assert_eq!(steps.len(), 31);
    assert!(told >= 31, "{told}");
    let main: Vec<_> = steps.iter().filter(|step| step.0 == "refs/heads/main").collect();
    assert!(main.windows(2).all(|pair| pair[0].2 == pair[1].1));
    assert_eq!(world.row(&repo).await.last_sequence, 31);
}

#[tokio::test]
async fn a_restored_database_tells_again_with_the_same_ids_in_a_new_epoch() {
    let world = World::new().await;
    let repo = world.repository("app").await;
    let (work, a) = world.seeded(&repo).await;
    world.announce(&repo).await;
    world
        .execute("CREATE TABLE refs_then AS TABLE repository_refs; CREATE TABLE repositories_then AS TABLE repositories; CREATE TABLE events_then AS TABLE outbox_events")
        .await;
    let mut last = a;
    for text in ["two", "three"] {
        let next = work.commit("file", text).await;
        work.ok(["push", "--quiet", "origin", "HEAD:refs/heads/main"]).await;
        world.announce(&repo).await;
        last = next;
    }
    let before = world.events(&repo).await;
    world
        .execute(
            "DELETE FROM outbox_events; INSERT INTO outbox_events SELECT * FROM events_then;
             UPDATE repository_refs AS r SET value = t.value, seq = t.seq, log_offset = t.log_offset, log_line_hash = t.log_line_hash, log_birth_hash = t.log_birth_hash
               FROM refs_then AS t WHERE t.ref = r.ref;
             UPDATE repositories AS r SET last_sequence = t.last_sequence FROM repositories_then AS t",
        )
        .await;
    assert_eq!(world.announce(&repo).await.events, 2);
    let after = world.events(&repo).await;
    assert_eq!(
        after.iter().map(|event| event.id).collect::<Vec<_>>(),
        before.iter().map(|event| event.id).collect::<Vec<_>>()
    );
    assert_ne!(after[2].text("sequence_epoch"), before[2].text("sequence_epoch"));
    assert_eq!(after[1].text("sequence_epoch"), after[2].text("sequence_epoch"));
    assert_eq!(world.row(&repo).await.last_commit_sha, Some(last));
    // The new epoch lasts: the mark beside the refs belongs to it now.
    work.commit("file", "four").await;
    work.ok(["push", "--quiet", "origin", "HEAD:refs/heads/main"]).await;
    world.announce(&repo).await;
    let newest = world.events(&repo).await;
    assert_eq!(newest[3].text("sequence_epoch"), newest[2].text("sequence_epoch"));
}

#[tokio::test]
async fn a_ref_that_the_database_refuses_is_set_aside_and_the_others_go_on() {
    let world = World::new().await;
    let repo = world.repository("app").await;
    let (work, a) = world.seeded(&repo).await;
    work.ok(["push", "--quiet", "origin", "HEAD:refs/heads/bad", "HEAD:refs/heads/good"]).await;
    world
        .execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 IF NEW.set_aside IS NULL AND NEW.ref = 'refs/heads/bad' THEN RAISE 'not this one'; END IF; RETURN NEW; END $$;
             CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON repository_refs FOR EACH ROW EXECUTE FUNCTION refuse()",
        )
        .await;
    let announced = world.announce(&repo).await;
    assert_eq!((announced.events, announced.set_aside), (2, 1));
    let reason = "SELECT set_aside FROM repository_refs WHERE set_aside IS NOT NULL";
    assert!(world.client.query_one(reason, &[]).await.unwrap().get::<_, String>(0).contains("not this one"));
    work.commit("file", "two").await;
    work.ok(["push", "--quiet", "origin", "HEAD:refs/heads/good"]).await;
    let announced = world.announce(&repo).await;
    assert_eq!((announced.events, announced.set_aside), (1, 1));
    world.execute("DROP TRIGGER refuse ON repository_refs").await;
    assert_eq!(world.announce(&repo).await.events, 1);
    assert_eq!(world.steps(&repo).await[3], step("refs/heads/bad", ZEROS, &a));
    assert!(world.client.query_opt(reason, &[]).await.unwrap().is_none());
}

#[tokio::test]
async fn a_mass_disappearance_is_held_until_it_is_confirmed() {
    let world = World::new().await;
    let repo = world.repository("app").await;
    let (work, _) = world.seeded(&repo).await;
    let names: Vec<String> = (0..20).map(|number| format!("refs/heads/b{number}")).collect();
    let push = |prefix: &str| {
        let refs = names.iter().map(|name| format!("{prefix}:{name}"));
        ["push", "--quiet", "origin"].map(String::from).into_iter().chain(refs).collect::<Vec<_>>()
    };
    work.ok(push("HEAD")).await;
    world.announce(&repo).await;
    work.ok(push("")).await;
    let held = world.announcer.announce(repo.id, Hints::default()).await.unwrap_err();
    assert!(matches!(held, AnnounceError::Held(_)), "{held}");
    let row = world.row(&repo).await;
    assert_eq!(
        (row.state, row.state_reason.as_deref()),
        (RepositoryState::Held, Some("20 of 21 refs are gone at once"))
    );
    assert_eq!(world.events(&repo).await.len(), 21);
    // They come back: nothing has happened.
    work.ok(push("HEAD")).await;
    world.announce(&repo).await;
    assert_eq!(world.row(&repo).await.state, RepositoryState::Active);
    work.ok(push("")).await;
    world.announcer.announce(repo.id, Hints::default()).await.unwrap_err();
    assert_eq!(world.announcer.confirm_held(repo.id).await.unwrap().events, 20);
    assert_eq!(world.row(&repo).await.state, RepositoryState::Active);
}

#[tokio::test]
async fn a_folder_in_doubt_makes_no_events() {
    let world = World::new().await;
    let repo = world.repository("app").await;
    let (work, _) = world.seeded(&repo).await;
    world.announce(&repo).await;
    work.commit("file", "two").await;
    work.ok(["push", "--quiet", "origin", "HEAD:refs/heads/main"]).await;
    let away = repo.path.with_extension("away");
    let refuses = async |what: &str| {
        let error = world.announcer.announce(repo.id, Hints::default()).await.unwrap_err();
        assert!(matches!(error, AnnounceError::Unavailable(_)), "{what}: {error}");
        let row = world.row(&repo).await;
        assert_eq!(row.state, RepositoryState::Unavailable, "{what}");
        assert!(row.state_reason.is_some());
        assert_eq!(world.events(&repo).await.len(), 1, "{what}");
    };
    std::fs::rename(&repo.path, &away).unwrap();
    refuses("missing").await;
    std::fs::create_dir(&repo.path).unwrap();
    refuses("empty").await;
    std::fs::remove_dir(&repo.path).unwrap();
    world.git.ok(["init", "--quiet", "--bare", "--", repo.path.to_str().unwrap()]).await;
    refuses("another without an id").await;
    world.bare(&repo).ok(["config", "surehook.repositoryId", &uuid::Uuid::new_v4().to_string()]).await;
    refuses("another with an id").await;
    std::fs::remove_dir_all(&repo.path).unwrap();
    std::fs::rename(&away, &repo.path).unwrap();
    assert_eq!(world.announce(&repo).await.events, 1);
    assert_eq!(world.row(&repo).await.state, RepositoryState::Active);
}

#[tokio::test]
async fn what_cannot_be_read_is_unknown_and_the_rest_is_told() {
    let world = World::new().await;
    let repo = world.repository("app").await;
    let (work, _) = world.seeded(&repo).await;
    work.ok(["push", "--quiet", "origin", "HEAD:refs/heads/torn"]).await;
    world.announce(&repo).await;
    std::fs::write(repo.path.join("refs/heads/torn"), "").unwrap();
    world.bare(&repo).ok(["update-ref", "refs/heads/side", "refs/heads/main"]).await;
    let announced = world.announce(&repo).await;
    assert_eq!((announced.events, announced.unknown.len()), (1, 1));
    assert_eq!(world.events(&repo).await.len(), 3);
}

#[tokio::test]
async fn somebody_elses_lock_delays_and_does_not_break() {
    let world = World::new().await;
    let repo = world.repository("app").await;
    world.seeded(&repo).await;
    world.execute("BEGIN").await;
    world.client.execute("SELECT FROM repositories WHERE repository_id = $1 FOR UPDATE", &[&repo.id]).await.unwrap();
    let announce = world.announcer.announce(repo.id, Hints::default());
    tokio::pin!(announce);
    assert!(tokio::time::timeout(Duration::from_millis(300), announce.as_mut()).await.is_err());
    world.execute("COMMIT").await;
    assert_eq!(announce.await.unwrap().events, 1);
}

#[tokio::test]
async fn pushes_while_announces_run_all_the_time_are_all_told() {
    let world = World::new().await;
    let repo = world.repository("app").await;
    let (work, _) = world.seeded(&repo).await;
    let pushing = async {
        for round in 0..25 {
            work.commit("file", &round.to_string()).await;
            work.ok(["push", "--quiet", "origin", "HEAD:refs/heads/main"]).await;
            if round % 5 == 0 {
                world.bare(&repo).ok(["pack-refs", "--all"]).await;
            }
        }
    };
    tokio::pin!(pushing);
    loop {
        tokio::select! {
            () = &mut pushing => break,
            outcome = world.announcer.announce(repo.id, Hints::default()) => { outcome.unwrap(); }
        }
    }
    world.announce(&repo).await;
    let steps = world.steps(&repo).await;
    assert_eq!(steps.len(), 26);
    assert!(steps.windows(2).all(|pair| pair[0].2 == pair[1].1));
    assert_eq!(steps.iter().map(|step| &step.2).collect::<BTreeSet<_>>().len(), 26);
}
