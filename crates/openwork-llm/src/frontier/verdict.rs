//! The verdict: which point to choose for a size or a speed, and whether pruning pays off.

use super::{Kind, Point};
use crate::format::{format_bytes, number};

/// Recommends, in one sentence, one of the points that [`mark`](super::mark) has marked.
/// `size` is the maximum in bytes, `speed` the minimum in tokens per second.
pub fn verdict(points: &[Point], size: Option<u64>, speed: Option<f64>) -> String {
    let mut clauses = Vec::new();
    if points.is_empty() {
        return "Nothing was measured.".to_string();
    }
    match size {
        Some(size) => clauses.push(at_size(points, size)),
        None => clauses.push(sizes(points)),
    }
    clauses.extend(speed.map(|speed| at_speed(points, speed)));
    if points.iter().any(|point| point.kind == Kind::Pruned) {
        clauses.push(pruning_for(points, &BY_SIZE));
        if points.iter().filter(|point| point.tokens_per_second.is_some()).count() > 1 {
            clauses.push(pruning_for(points, &BY_SPEED));
        }
    }
    let sentence = clauses.join("; ") + ".";
    let mut letters = sentence.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

fn least<'a>(points: impl Iterator<Item = &'a Point>) -> Option<&'a Point> {
    points.min_by(|a, b| a.token_perplexity.total_cmp(&b.token_perplexity))
}

fn named(point: &Point) -> String {
    format!("{} (perplexity {})", point.name, number(point.token_perplexity))
}

fn at_size(points: &[Point], size: u64) -> String {
    let asked = format_bytes(size);
    match least(points.iter().filter(|point| point.bytes <= size)) {
        Some(point) => format!("at {asked}: {}", named(point)),
        None => {
            let smallest = points.iter().min_by_key(|point| point.bytes);
            let smallest = smallest.map_or(String::new(), |point| {
                format!("; the smallest is {} with {}", point.name, format_bytes(point.bytes))
            });
            format!("nothing fits {asked}{smallest}")
        }
    }
}

fn at_speed(points: &[Point], speed: f64) -> String {
    let asked = number(speed);
    let fast = |point: &&Point| point.tokens_per_second.is_some_and(|found| found >= speed);
    match least(points.iter().filter(fast)) {
        Some(point) => format!("at {asked} tokens/s: {}", named(point)),
        None => format!("nothing reaches {asked} tokens/s"),
    }
}

/// The unpruned points on the frontier, by the size from which they are the best.
fn sizes(points: &[Point]) -> String {
    let best = points.iter().filter(|point| point.best && point.kind != Kind::Pruned);
    let best: Vec<String> =
        best.map(|point| format!("from {} {}", format_bytes(point.bytes), named(point))).collect();
    match best.is_empty() {
        // Pruned points beat every other.
        true => "no unpruned model is the best at any size".to_string(),
        false => best.join(", "),
    }
}

/// A resource that points are compared by.
struct Axis {
    /// How much of it a point has; less is harder to reach with a low perplexity.
    amount: fn(&Point) -> Option<f64>,
    best: fn(&Point) -> bool,
    text: fn(f64) -> String,
    /// Words for amounts under and over a bound, and for the whole axis.
    under: &'static str,
    over: &'static str,
    whole: &'static str,
    /// Why pruning pays off where there is no unpruned point.
    alone: &'static str,
}

const BY_SIZE: Axis = Axis {
    amount: |point| Some(point.bytes as f64),
    best: |point| point.best,
    text: |bytes| format_bytes(bytes as u64),
    under: "below",
    over: "from",
    whole: "at any size",
    alone: "where no unpruned model fits",
};

/// Speed as its negative, so that less is harder.
const BY_SPEED: Axis = Axis {
    amount: |point| point.tokens_per_second.map(|speed| -speed),
    best: |point| point.best_for_speed,
    text: |negative| format!("{} tokens/s", number(-negative)),
    under: "above",
    over: "up to",
    whole: "for speed",
    alone: "where no unpruned model is as fast",
};

/// Whether pruning pays off, and where: the ranges in which the best point is a pruned one.
fn pruning_for(points: &[Point], axis: &Axis) -> String {
    let amount = |point: &Point| (axis.amount)(point).unwrap_or(f64::NAN);
    let mut best: Vec<&Point> = points.iter().filter(|point| (axis.best)(point)).collect();
    best.sort_by(|a, b| amount(a).total_cmp(&amount(b)));
    let unpruned = |point: &&Point| point.kind != Kind::Pruned && amount(point).is_finite();
    let least_unpruned = points.iter().filter(unpruned).map(amount).fold(f64::INFINITY, f64::min);
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < best.len() {
        let run = best[at..].iter().take_while(|point| point.kind == Kind::Pruned).count();
        let Some(last) = run.checked_sub(1).map(|i| best[at + i]) else {
            at += 1;
            continue;
        };
        let (first, next) = (best[at], best.get(at + run));
        let until = next.map(|point| amount(point));
        let (text, from) = (axis.text, (axis.text)(amount(first)));
        let last = format!("{}, perplexity {}", last.name, number(last.token_perplexity));
        ranges.push(match (at, until) {
            (_, None) => format!("{} {from} ({last})", axis.over),
            (0, Some(until)) if until <= least_unpruned => {
                format!("{} {}, {} ({last})", axis.under, text(until), axis.alone)
            }
            (0, Some(until)) => format!("{} {} ({last})", axis.under, text(until)),
            (_, Some(until)) => {
                format!("between {from} and {} ({last})", text(until))
            }
        });
        at += run;
    }
    match ranges.is_empty() {
        true => format!("pruning does not pay off {}", axis.whole),
        false => format!("pruning pays off {}", ranges.join(" and ")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::mark;
    use super::super::tests::point;
    use super::*;

    fn says(points: &[Point], size: Option<u64>, speed: Option<f64>) -> String {
        let mut points = points.to_vec();
        mark(&mut points);
        verdict(&points, size, speed)
    }

    #[test]
    fn it_says_what_to_take_and_whether_pruning_pays() {
        let dense = [
            point("dense bf16", 270, 22.7, Some(85.0)),
            point("dense int8", 145, 22.8, Some(110.0)),
            point("dense int4", 80, 25.0, Some(130.0)),
        ];
        let with = |more: &[Point]| [&dense[..], more].concat();
        assert_eq!(
            says(&dense, None, None),
            "From 80.0 MB dense int4 (perplexity 25.00), from 145.0 MB dense int8 (perplexity \
             22.80), from 270.0 MB dense bf16 (perplexity 22.70)."
        );
        assert_eq!(
            says(&dense, Some(100_000_000), Some(100.0)),
            "At 100.0 MB: dense int4 (perplexity 25.00); at 100.0 tokens/s: dense int8 \
             (perplexity 22.80)."
        );
        // Larger, slower and worse than dense int4.
        let useless = with(&[point("2:4 int8", 90, 49.0, Some(120.0))]);
        assert_eq!(
            says(&useless, Some(100_000_000), None),
            "At 100.0 MB: dense int4 (perplexity 25.00); pruning does not pay off at any size; \
             pruning does not pay off for speed."
        );
        let small = with(&[point("2:4 int4", 60, 49.0, Some(150.0))]);
        assert_eq!(
            says(&small, Some(100_000_000), None),
            "At 100.0 MB: dense int4 (perplexity 25.00); pruning pays off below 80.0 MB, where no \
             unpruned model fits (2:4 int4, perplexity 49.00); pruning pays off above 130.0 \
             tokens/s, where no unpruned model is as fast (2:4 int4, perplexity 49.00)."
        );
        let between = with(&[point("6:8 int8", 120, 23.9, None)]);
        assert!(says(&between, None, None).contains(
            "pruning pays off between 120.0 MB and 145.0 MB (6:8 int8, perplexity 23.90)"
        ));
        let always = with(&[point("6:8 int8", 70, 20.0, Some(140.0))]);
        let said = says(&always, None, None);
        assert!(said.starts_with("No unpruned model is the best at any size"), "{said}");
        assert!(said.contains("pruning pays off from 70.0 MB"), "{said}");
        assert!(
            says(&dense, Some(1_000_000), None)
                .starts_with("Nothing fits 1.0 MB; the smallest is dense int4 with 80.0 MB")
        );
        assert_eq!(says(&[], None, None), "Nothing was measured.");
    }
}
