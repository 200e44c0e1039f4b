//! The picture of a run: what waited, over time, with the faults as bars below. Made of text, so that it needs nothing.

use std::fmt::Write as _;

use super::seconds;
use crate::run::Outcome;
use crate::timeline::{Happened, Sample};

const WIDTH: f64 = 960.0;
const LEFT: f64 = 92.0;
const RIGHT: f64 = 60.0;
const CURVE_TOP: f64 = 34.0;
const CURVE_HEIGHT: f64 = 200.0;
const ROW_HEIGHT: f64 = 22.0;
const ROWS: [&str; 6] = ["network", "git", "serve", "workers", "receiver", "PostgreSQL"];

/// Draws a run.
pub fn picture(outcome: &Outcome) -> String {
    let last_ms = outcome.samples.last().map_or(1, |sample| sample.at_ms).max(1);
    let scale = Scale { last_ms, most: most(&outcome.samples) };
    let rows: Vec<&str> =
        ROWS.into_iter().filter(|row| outcome.happened.iter().any(|h| h.fault.lane() == *row)).collect();
    #[expect(clippy::cast_precision_loss, reason = "there are at most six")]
    let height = CURVE_TOP + CURVE_HEIGHT + 34.0 + ROW_HEIGHT * rows.len() as f64 + 10.0;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" xmlns=\"http://www.w3.org/2000/svg\">\n\
         <title>What waited over time, and the faults of {}</title>\n",
        outcome.plan.scenario.name()
    );
    // Cannot fail: it is memory.
    let _ = write!(svg, "{}", axes(&scale));
    let waiting = |sample: &Sample| Some(sample.pending? + sample.to_build?);
    let _ = writeln!(svg, "<path class=\"backlog\" d=\"{}\"/>", area(&outcome.samples, &scale, waiting));
    let _ = writeln!(svg, "<path class=\"built\" d=\"{}\"/>", line(&outcome.samples, &scale, |sample| sample.built));
    let _ = writeln!(svg, "<path class=\"events\" d=\"{}\"/>", line(&outcome.samples, &scale, |sample| sample.events));
    let _ = write!(svg, "{}", legend());
    for (at, row) in rows.iter().enumerate() {
        #[expect(clippy::cast_precision_loss, reason = "there are at most six")]
        let y = CURVE_TOP + CURVE_HEIGHT + 34.0 + ROW_HEIGHT * at as f64;
        let _ = writeln!(svg, "<text class=\"row\" x=\"{}\" y=\"{}\">{row}</text>", LEFT - 8.0, y + 14.0);
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{}\" y2=\"{}\"/>",
            WIDTH - RIGHT,
            y + 10.0,
            y + 10.0
        );
        for happened in outcome.happened.iter().filter(|happened| happened.fault.lane() == *row) {
            let _ = write!(svg, "{}", bar(happened, &scale, y));
        }
    }
    svg.push_str("</svg>\n");
    svg
}

struct Scale {
    last_ms: u64,
    most: i64,
}

impl Scale {
    #[expect(clippy::cast_precision_loss, reason = "a picture has not that many points")]
    fn x(&self, at_ms: u64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * at_ms.min(self.last_ms) as f64 / self.last_ms as f64
    }

    #[expect(clippy::cast_precision_loss, reason = "a picture has not that many points")]
    fn y(&self, value: i64) -> f64 {
        CURVE_TOP + CURVE_HEIGHT * (1.0 - value as f64 / self.most as f64)
    }
}

fn most(samples: &[Sample]) -> i64 {
    let of = |sample: &Sample| [sample.events, sample.built, sample.pending].into_iter().flatten().max();
    round_up(samples.iter().filter_map(of).max().unwrap_or(0).max(1))
}

/// To 1, 2 or 5 with zeros behind.
fn round_up(value: i64) -> i64 {
    let mut step = 1;
    loop {
        for factor in [1, 2, 5] {
            if factor * step >= value {
                return factor * step;
            }
        }
        step *= 10;
    }
}

fn axes(scale: &Scale) -> String {
    let mut axes = String::new();
    for quarter in 0..=4 {
        let value = scale.most * quarter / 4;
        let y = scale.y(value);
        let _ = writeln!(axes, "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\"/>", WIDTH - RIGHT);
        let _ = writeln!(axes, "<text class=\"row\" x=\"{}\" y=\"{}\">{value}</text>", LEFT - 8.0, y + 4.0);
    }
    for part in 0..=6 {
        let at_ms = scale.last_ms * part / 6;
        let (x, y) = (scale.x(at_ms), CURVE_TOP + CURVE_HEIGHT + 18.0);
        let _ = writeln!(axes, "<text class=\"time\" x=\"{x}\" y=\"{y}\">{}</text>", seconds(at_ms));
    }
    axes
}

fn legend() -> String {
    let mut legend = String::new();
    for (at, (class, words)) in
        [("events", "events committed"), ("built", "built by the receiver"), ("backlog", "waiting between the two")]
            .into_iter()
            .enumerate()
    {
        #[expect(clippy::cast_precision_loss, reason = "there are three")]
        let x = LEFT + 190.0 * at as f64;
        let _ = writeln!(legend, "<rect class=\"key {class}\" x=\"{x}\" y=\"10\" width=\"14\" height=\"10\"/>");
        let _ = writeln!(legend, "<text class=\"legend\" x=\"{}\" y=\"19\">{words}</text>", x + 20.0);
    }
    legend
}

/// Where the database was away there is a gap.
fn line(samples: &[Sample], scale: &Scale, value: impl Fn(&Sample) -> Option<i64>) -> String {
    let mut path = String::new();
    let mut pen_is_down = false;
    for sample in samples {
        let Some(value) = value(sample) else {
            pen_is_down = false;
            continue;
        };
        let _ =
            write!(path, "{}{:.1} {:.1} ", if pen_is_down { 'L' } else { 'M' }, scale.x(sample.at_ms), scale.y(value));
        pen_is_down = true;
    }
    path
}

fn area(samples: &[Sample], scale: &Scale, value: impl Fn(&Sample) -> Option<i64>) -> String {
    let bottom = CURVE_TOP + CURVE_HEIGHT;
    let mut path = String::new();
    let mut last_x = None;
    for sample in samples {
        let x = scale.x(sample.at_ms);
        match (value(sample), last_x) {
            (Some(value), None) => {
                let _ = write!(path, "M{x:.1} {bottom} L{x:.1} {:.1} ", scale.y(value.min(scale.most)));
                last_x = Some(x);
            }
            (Some(value), Some(_)) => {
                let _ = write!(path, "L{x:.1} {:.1} ", scale.y(value.min(scale.most)));
                last_x = Some(x);
            }
            (None, Some(before)) => {
                let _ = write!(path, "L{before:.1} {bottom} Z ");
                last_x = None;
            }
            (None, None) => {}
        }
    }
    if let Some(x) = last_x {
        let _ = write!(path, "L{x:.1} {bottom} Z");
    }
    path
}

fn bar(happened: &Happened, scale: &Scale, y: f64) -> String {
    let (from, until) = (scale.x(happened.from_ms), scale.x(happened.until_ms));
    let width = (until - from).max(3.0);
    let words = super::html::escaped(&happened.fault.words());
    let note = super::html::escaped(&happened.note);
    let times = format!("{} to {}", seconds(happened.from_ms), seconds(happened.until_ms));
    format!(
        "<rect class=\"fault {}\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"14\"><title>{times}: {words} {note}</title></rect>\n",
        happened.fault.lane(),
        y + 3.0
    )
}
