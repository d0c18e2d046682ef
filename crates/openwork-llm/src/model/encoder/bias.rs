//! A bias of attention scores that depends on the distance of two tokens, as in MPNet and
//! T5: near distances have an entry each, far ones share entries by their logarithm.

use std::ops::Range;

/// Distances from this one on share the last entry.
const FARTHEST: usize = 128;
/// The number of entries, both directions together, that transformers supports.
pub const BUCKETS: usize = 32;

/// The bias of every head and distance, up to some number of tokens.
#[derive(Debug)]
pub struct PositionBias {
    /// `[heads, 2 reach - 1]`: entry `reach - 1 + s - t` is that of key `s` and query `t`.
    rows: Vec<f32>,
    /// Largest number of tokens.
    reach: usize,
}

impl PositionBias {
    /// From the embedding of distances, `[BUCKETS, heads]`, for at most `reach` tokens.
    pub fn new(weights: &[f32], heads: usize, reach: usize) -> Self {
        let distances = -(reach as isize - 1)..=reach as isize - 1;
        let entry = |head: usize, distance: isize| weights[bucket(distance) * heads + head];
        let rows = (0..heads)
            .flat_map(|head| distances.clone().map(move |distance| entry(head, distance)))
            .collect();
        Self { rows, reach }
    }

    /// The bias of the keys `keys` for the query at position `t`.
    pub fn of(&self, head: usize, t: usize, keys: Range<usize>) -> &[f32] {
        let row = head * (2 * self.reach - 1) + self.reach - 1 - t;
        &self.rows[row + keys.start..row + keys.end]
    }
}

/// The entry of a distance `s - t`: half of them for each direction; of these, half for one
/// distance each, and the others for distances up to [`FARTHEST`], evenly by their logarithm.
fn bucket(distance: isize) -> usize {
    const HALF: usize = BUCKETS / 2;
    const EXACT: usize = HALF / 2;
    let n = distance.unsigned_abs();
    let near = match n < EXACT {
        true => n,
        false => {
            let ratio = (n as f32 / EXACT as f32).ln();
            let all = (FARTHEST as f64 / EXACT as f64).ln() as f32;
            (EXACT + (ratio / all * (HALF - EXACT) as f32) as usize).min(HALF - 1)
        }
    };
    near + if distance > 0 { HALF } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_distances_have_entries_of_their_own() {
        let near: Vec<usize> = (-8..=8).map(bucket).collect();
        assert_eq!(near, [8, 7, 6, 5, 4, 3, 2, 1, 0, 17, 18, 19, 20, 21, 22, 23, 24]);
        // As transformers' function gives them.
        let first: [isize; 8] = [8, 12, 16, 23, 32, 46, 64, 91];
        assert_eq!(first.map(bucket), [24, 25, 26, 27, 28, 29, 30, 31]);
        assert_eq!(first.map(|n| bucket(n - 1)), [23, 24, 25, 26, 27, 28, 29, 30]);
        assert_eq!([128, 500].map(bucket), [31, 31]);
        assert_eq!([-16, -500].map(bucket), [10, 15]);
    }

    #[test]
    fn rows_are_shifted_by_the_position_of_the_query() {
        let weights: Vec<f32> = (0..BUCKETS * 2).map(|i| i as f32).collect();
        let bias = PositionBias::new(&weights, 2, 5);
        for head in 0..2 {
            for t in 0..5 {
                let want = |s: usize| (bucket(s as isize - t as isize) * 2 + head) as f32;
                assert_eq!(bias.of(head, t, 0..5), (0..5).map(want).collect::<Vec<_>>());
                assert_eq!(bias.of(head, t, 2..4), [want(2), want(3)]);
            }
        }
    }
}
