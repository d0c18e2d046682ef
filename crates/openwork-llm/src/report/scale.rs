//! Axes: map values to positions, and choose round tick values.

use crate::format::tick;

/// An axis, linear or logarithmic.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    log: bool,
}

impl Scale {
    /// From 0 to the largest finite value.
    pub fn from_zero(values: impl Iterator<Item = f64>) -> Self {
        let high = values.filter(|x| x.is_finite()).fold(0.0, f64::max);
        let high = if high > 0.0 { high } else { 1.0 };
        Self { low: 0.0, high: round_up(high, step(0.0, high)), log: false }
    }

    /// Around the finite positive values; logarithmic if they span a large range.
    pub fn around(values: impl Iterator<Item = f64>) -> Self {
        const MUCH: f64 = 4.0;
        let (low, high) = ends(values);
        if high > MUCH * low {
            return Self::widened_log(low, high);
        }
        let by = step(low, high);
        let (low, high) = ((low / by).floor() * by, round_up(high, by));
        if high > low {
            Self { low, high, log: false }
        } else {
            Self { low, high: low + by, log: false }
        }
    }

    /// Logarithmic, around the finite positive values.
    pub fn log(values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = ends(values);
        Self::widened_log(low, high)
    }

    /// Exactly from `low` to `high`.
    pub fn exact(low: f64, high: f64) -> Self {
        Self { low, high: if high > low { high } else { low + 1.0 }, log: false }
    }

    fn widened_log(low: f64, high: f64) -> Self {
        const ROOM: f64 = 1.12;
        Self {
            low: (low / ROOM).max(f64::MIN_POSITIVE),
            high: (high * ROOM).min(f64::MAX),
            log: true,
        }
    }

    /// Whether the axis is logarithmic.
    pub fn is_log(&self) -> bool {
        self.log
    }

    /// The position of a value from 0 to 1; `None` if it is not on the axis.
    pub fn place(&self, x: f64) -> Option<f64> {
        let at = match self.log {
            true if x <= 0.0 => return None,
            // Differences of logarithms, so that no ratio is infinite.
            true => (x.ln() - self.low.ln()) / (self.high.ln() - self.low.ln()),
            // Halves, so that no difference is infinite.
            false => (x / 2.0 - self.low / 2.0) / (self.high / 2.0 - self.low / 2.0),
        };
        at.is_finite().then(|| at.clamp(0.0, 1.0))
    }

    /// About five round numbers with their positions.
    pub fn ticks(&self) -> Vec<(f64, String)> {
        let values = if self.log { self.log_ticks() } else { self.even_ticks() };
        values.into_iter().filter_map(|x| Some((self.place(x)?, tick(x)))).collect()
    }

    fn even_ticks(&self) -> Vec<f64> {
        const MOST: usize = 12;
        let by = step(self.low, self.high);
        // A bound that is a tick may lie just above it by rounding.
        let first = (self.low / by - 1e-9).ceil();
        (0..MOST)
            .map(|i| round((first + i as f64) * by))
            .take_while(|&x| x <= self.high * (1.0 + 1e-9))
            .collect()
    }

    fn log_ticks(&self) -> Vec<f64> {
        let decades = self.high.log10() - self.low.log10();
        let within: &[f64] = match decades {
            d if d < 0.5 => &[1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
            d if d < 1.0 => &[1.0, 1.5, 2.0, 3.0, 5.0, 7.0],
            d if d < 1.8 => &[1.0, 2.0, 5.0],
            _ => &[1.0],
        };
        // With many decades, some are skipped.
        let every = (decades / 6.0).ceil().max(1.0) as i32;
        let first = self.low.log10().floor() as i32;
        let last = self.high.log10().ceil() as i32;
        (first..=last)
            .filter(|power| power.rem_euclid(every) == 0)
            .flat_map(|power| within.iter().map(move |x| round(x * 10f64.powi(power))))
            .filter(|x| (self.low..=self.high).contains(x))
            .collect()
    }
}

/// The least and largest of the finite positive values.
fn ends(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values
        .filter(|x| x.is_finite() && *x > 0.0)
        .fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), x| (low.min(x), high.max(x)));
    if low.is_finite() { (low, high) } else { (0.1, 1.0) }
}

/// A round step that divides a range into about five.
fn step(low: f64, high: f64) -> f64 {
    // A range of one value is given a width of its own.
    let width = if high > low { high - low } else { (high.abs() / 5.0).max(1e-300) };
    let raw = width / 5.0;
    let power = 10f64.powf(raw.log10().floor());
    let by = [1.0, 2.0, 5.0, 10.0].iter().map(|m| m * power).find(|by| *by >= raw * 0.999);
    by.unwrap_or(power).clamp(f64::MIN_POSITIVE, f64::MAX)
}

fn round_up(x: f64, by: f64) -> f64 {
    let up = (x / by - 1e-9).ceil() * by;
    if up.is_finite() { up } else { x }
}

/// Rounds to twelve significant digits, which removes rounding errors.
fn round(x: f64) -> f64 {
    format!("{x:.11e}").parse().unwrap_or(x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn labels(scale: Scale) -> Vec<String> {
        scale.ticks().into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn ticks_are_round_numbers() {
        fn all(x: &[f64]) -> impl Iterator<Item = f64> {
            x.iter().copied()
        }
        assert_eq!(labels(Scale::from_zero(all(&[0.17, 0.31]))), ["0", "0.1", "0.2", "0.3", "0.4"]);
        assert_eq!(labels(Scale::around(all(&[22.7, 74.0]))), ["20", "40", "60", "80"]);
        assert_eq!(labels(Scale::around(all(&[22.7, 9000.0]))), ["100", "1000", "10000"]);
        assert_eq!(labels(Scale::log(all(&[0.03, 0.3]))), ["0.05", "0.1", "0.2"]);
        assert_eq!(
            labels(Scale::around(all(&[5.343, 5.467]))),
            ["5.3", "5.35", "5.4", "5.45", "5.5"]
        );
        assert_eq!(labels(Scale::exact(0.0, 3.0)), ["0", "1", "2", "3"]);
    }

    proptest! {
        #[test]
        fn every_value_has_a_place_on_its_own_axis(
            values in prop::collection::vec(prop::num::f64::POSITIVE | prop::num::f64::NORMAL | prop::num::f64::ZERO, 0..9)
        ) {
            for scale in [
                Scale::from_zero(values.iter().copied()),
                Scale::around(values.iter().copied()),
                Scale::log(values.iter().copied()),
            ] {
                for &x in values.iter().filter(|x| x.is_finite() && **x > 0.0) {
                    let place = scale.place(x);
                    prop_assert!(place.is_some_and(|at| (0.0..=1.0).contains(&at)), "{x} on {scale:?}");
                }
                prop_assert!(scale.ticks().len() <= 40);
            }
        }
    }
}
