//! What an endpoint was not told of, said in SQL: the parts that counting and enqueuing share. Everywhere `e` is a row of
//! `outbox_events`, `$1` the endpoint and `$2` its format.
//!
//! LIMIT keeps the planner from joining whole weeks, as in `store::retention::pins`.

/// The webhooks that an event is in the endpoint's format, as rows of `webhook_name`: one, or those that were rendered.
macro_rules! webhooks {
    () => {
        "(SELECT e.event_type AS webhook_name WHERE $2::text = 'native'
          UNION ALL SELECT b.webhook_name FROM outbox_bodies AS b
                     WHERE $2::text <> 'native' AND b.event_id = e.event_id AND b.created_at = e.created_at AND b.format = $2::text)"
    };
}

/// The endpoint has no delivery of the webhook `w`, whatever became of it and in whichever lane.
macro_rules! untold {
    () => {
        "(SELECT true FROM outbox_deliveries AS d JOIN outbox_lanes AS l ON l.lane_id = d.lane_id
           WHERE d.event_id = e.event_id AND d.created_at >= e.created_at AND d.webhook_name = w.webhook_name AND l.endpoint_id = $1::uuid
           LIMIT 1) IS NULL"
    };
}

/// The event goes to the endpoint, by the rule that enqueuing goes by.
macro_rules! wanted {
    () => {
        "(SELECT true FROM outbox_matching_endpoints(e.event_type, e.aggregate_id, e.aggregate_name) AS m
           WHERE m.endpoint_id = $1::uuid LIMIT 1)"
    };
}

/// The event goes to the endpoint, and something of it was not told.
macro_rules! wanted_and_untold {
    () => {
        concat!(
            untold::wanted!(),
            " AND (SELECT true FROM ",
            untold::webhooks!(),
            " AS w WHERE ",
            untold::untold!(),
            " LIMIT 1)"
        )
    };
}

/// What was not told, as rows of `missing`: from `$3` on, and of the aggregate `$4` only, if one is named. It reads all of these
/// events.
macro_rules! missing {
    () => {
        concat!(
            "missing AS MATERIALIZED (
        SELECT e.event_type, e.aggregate_id, e.ordering_key, e.created_at
          FROM outbox_events AS e CROSS JOIN LATERAL ",
            untold::webhooks!(),
            " AS w
         WHERE e.created_at >= $3::timestamptz AND ($4::text IS NULL OR e.aggregate_id = $4) AND ",
            untold::wanted!(),
            " AND ",
            untold::untold!(),
            ")"
        )
    };
}

pub(super) use {missing, untold, wanted, wanted_and_untold, webhooks};
