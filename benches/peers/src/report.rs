//! Figures of many runs: their medians, how they compare, as a table or as JSON. Pure.

use std::collections::BTreeMap;

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

/// What a figure is and which of two is the better one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metric {
    /// With its unit last, as in JSON.
    pub(crate) name: &'static str,
    pub(crate) better: Better,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    More,
    Less,
    /// Only told, never compared.
    Neither,
}

pub(crate) const fn more(name: &'static str) -> Metric {
    Metric { name, better: Better::More }
}

pub(crate) const fn less(name: &'static str) -> Metric {
    Metric { name, better: Better::Less }
}

pub(crate) const fn told(name: &'static str) -> Metric {
    Metric { name, better: Better::Neither }
}

/// The figures of one run.
pub(crate) type Figures = BTreeMap<&'static str, f64>;

/// All runs of a scenario.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) scenario: String,
    pub(crate) conditions: BTreeMap<&'static str, String>,
    #[serde(skip)]
    pub(crate) metrics: Vec<Metric>,
    pub(crate) contenders: Vec<Row>,
    /// For each compared figure: surehook's median by the best of the others; a ratio of two medians of the same rounds.
    pub(crate) surehook_by_best: BTreeMap<&'static str, Ratio>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) contender: String,
    pub(crate) medians: Figures,
    pub(crate) rounds: Vec<Figures>,
    /// Why it has no figures, or fewer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) troubles: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Ratio {
    pub(crate) ratio: f64,
    pub(crate) best: String,
}

impl Report {
    pub(crate) fn new(scenario: &str, metrics: &[Metric], conditions: BTreeMap<&'static str, String>) -> Self {
        Self {
            scenario: scenario.into(),
            conditions,
            metrics: metrics.to_vec(),
            contenders: Vec::new(),
            surehook_by_best: BTreeMap::new(),
        }
    }

    /// Computes what is computed, once all rounds are in.
    pub(crate) fn finish(&mut self) {
        for row in &mut self.contenders {
            for metric in &self.metrics {
                let values: Vec<f64> = row.rounds.iter().filter_map(|round| round.get(metric.name).copied()).collect();
                if let Some(median) = median(values) {
                    row.medians.insert(metric.name, median);
                }
            }
        }
        for metric in &self.metrics {
            let ours = self.contenders.iter().find(|row| row.contender == "surehook");
            let Some(ours) = ours.and_then(|row| row.medians.get(metric.name)) else { continue };
            // One that brought nothing home, or invented a fast way of losing things, is no measure.
            let peers = self.contenders.iter().filter(|row| row.contender != "surehook" && row.troubles.is_empty());
            let peers = peers.filter_map(|row| Some((row.contender.clone(), *row.medians.get(metric.name)?)));
            let best = match metric.better {
                Better::Neither => None,
                Better::More => peers.max_by(|left, right| left.1.total_cmp(&right.1)),
                Better::Less => peers.min_by(|left, right| left.1.total_cmp(&right.1)),
            };
            if let Some((best, figure)) = best.filter(|best| best.1 != 0.0) {
                self.surehook_by_best.insert(metric.name, Ratio { ratio: ours / figure, best });
            }
        }
    }

    /// For people.
    pub(crate) fn table(&self) -> String {
        let mut table = Table::new();
        table.load_preset(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
        let mut head = vec![String::from(&self.scenario)];
        head.extend(self.metrics.iter().map(|metric| metric.name.replace('_', " ")));
        table.set_header(head);
        for row in &self.contenders {
            let mut cells = vec![row.contender.clone()];
            cells.extend(self.metrics.iter().map(|metric| {
                let spread = spread(row.rounds.iter().filter_map(|round| round.get(metric.name).copied()));
                row.medians.get(metric.name).map_or_else(|| "-".into(), |median| format!("{}{spread}", figure(*median)))
            }));
            table.add_row(cells);
        }
        let mut text = format!("{table}\n");
        for metric in &self.metrics {
            if let Some(Ratio { ratio, best }) = self.surehook_by_best.get(metric.name) {
                let better = if metric.better == Better::More { "more is better" } else { "less is better" };
                text.push_str(&format!("{}: surehook {ratio:.2} x {best} ({better})\n", metric.name.replace('_', " ")));
            }
        }
        for row in &self.contenders {
            for trouble in &row.troubles {
                text.push_str(&format!("{}: {trouble}\n", row.contender));
            }
        }
        for (name, value) in &self.conditions {
            text.push_str(&format!("{name}: {value}\n"));
        }
        text
    }
}

pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        count if count % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

/// The value below which that share of all lies; values need not be sorted. None of none.
pub(crate) fn percentile(values: &mut [f64], share: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place in a slice")]
    let place = (share * values.len().saturating_sub(1) as f64).round() as usize;
    values.get(place).copied()
}

/// From the least to the greatest, if there are several.
fn spread(values: impl Iterator<Item = f64> + Clone) -> String {
    let (least, greatest) =
        (values.clone().fold(f64::INFINITY, f64::min), values.clone().fold(f64::NEG_INFINITY, f64::max));
    if values.count() < 2 || figure(least) == figure(greatest) {
        String::new()
    } else {
        format!(" ({} to {})", figure(least), figure(greatest))
    }
}

/// Three digits, more only before the point.
fn figure(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_percentiles() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(Vec::new()), None);
        let mut hundred: Vec<f64> = (0..=100).rev().map(f64::from).collect();
        assert_eq!(percentile(&mut hundred, 0.99), Some(99.0));
    }

    #[test]
    fn surehook_is_set_beside_the_best_of_the_others() {
        let mut report = Report::new("x", &[more("a"), less("b"), told("c")], BTreeMap::new());
        for (contender, a, b, trouble) in
            [("surehook", 20.0, 1.0, ""), ("one", 10.0, 2.0, ""), ("two", 5.0, 4.0, ""), ("three", 99.0, 0.1, "lost 3")]
        {
            report.contenders.push(Row {
                contender: contender.into(),
                medians: Figures::new(),
                rounds: vec![Figures::from([("a", a), ("b", b), ("c", 1.0)])],
                troubles: if trouble.is_empty() { Vec::new() } else { vec![trouble.into()] },
            });
        }
        report.finish();
        let ratio = |name| (report.surehook_by_best[name].ratio, report.surehook_by_best[name].best.as_str());
        assert_eq!(ratio("a"), (2.0, "one"));
        assert_eq!(ratio("b"), (0.5, "one"));
        assert!(!report.surehook_by_best.contains_key("c"));
    }
}
