//! The Hessians of a capture. An expert gets only the tokens routed to it; if there are
//! fewer of them than the width of its inputs, its statistics are supplemented:
//!
//! ```text
//! gate, up   (n H + m H_all) / (n + m)    m = width - n    H_all: all tokens of the layer
//! down       (n H + m h I) / (n + m)      h: the mean of H's diagonal, or 1
//! ```
//!
//! The statistics of other tokens do not apply to the inputs of down, which are the
//! expert's own channels. If experts have a norm of their own (Gemma 4), gate and up are
//! treated like down.

use super::PipelineError;
use super::stages::Sums;
use crate::format;
use crate::model::{Input, LayerInfo, Site};
use openwork::Matrix;
use openwork::hessian::{Hessian, HessianError};

/// The Hessian of every site, with notes for the user.
pub struct SiteStatistics {
    /// In the order of the sites.
    pub hessians: Vec<(Site, Hessian)>,
    /// Sites with a note.
    pub notes: Vec<(Site, String)>,
}

impl SiteStatistics {
    /// The Hessians of `sites` from their sums.
    pub fn new(info: &LayerInfo, sites: &[Site], sums: Sums) -> Result<Self, PipelineError> {
        let wrong = |site: Site, error: HessianError| PipelineError::Inputs {
            tensor: format!("{}{}, {site}", info.prefix, info.index),
            error,
        };
        let mut found: Vec<(Site, Hessian)> = Vec::with_capacity(sums.len());
        for (site, sum) in sums {
            found.push((site, sum.finish().map_err(|error| wrong(site, error))?));
        }
        let all = found.iter().find(|(site, _)| *site == Input::GateUp.into());
        let all = all.map(|(_, hessian)| hessian.clone());
        let mut notes = Vec::new();
        for &site in sites.iter().filter(|site| site.expert.is_some()) {
            let at = found.iter().position(|(known, _)| *known == site);
            let width = info.width(site);
            let tokens = at.and_then(|at| found[at].1.samples()).unwrap_or(0);
            if tokens >= width {
                continue;
            }
            let own = at.map(|at| &found[at].1);
            // Experts that run in parallel with an MLP have a norm of their own.
            let same = site.input == Input::GateUp && !info.beside_mlp;
            let common = all.as_ref().filter(|_| same);
            let mixed = mixed(own, tokens, common, width).map_err(|error| wrong(site, error))?;
            match at {
                Some(at) => found[at].1 = mixed,
                None => found.push((site, mixed)),
            }
            let with = match common {
                Some(_) => "the statistics of all tokens of the layer supplement them",
                None => "they are supplemented as if uncorrelated",
            };
            let tokens = format::count(tokens, "token");
            notes.push((
                site,
                format!("{tokens} routed to this expert, for {width} inputs: {with}"),
            ));
        }
        found.sort_by_key(|(site, _)| *site);
        Ok(Self { hessians: found, notes })
    }
}

/// The Hessian of `tokens` tokens, supplemented up to `width` tokens with common
/// statistics, or with uncorrelated inputs of the same magnitude.
fn mixed(
    own: Option<&Hessian>,
    tokens: usize,
    common: Option<&Hessian>,
    width: usize,
) -> Result<Hessian, HessianError> {
    let (n, m) = (tokens as f64, (width - tokens) as f64);
    let size = own.map_or(1.0, |own| own.mean_diagonal());
    let size = if size > 0.0 { size } else { 1.0 };
    let matrix = Matrix::from_fn(width, width, |i, j| {
        let own = own.map_or(0.0, |own| own.matrix().row(i)[j]);
        let other = match common {
            Some(common) => common.matrix().row(i)[j],
            None if i == j => size,
            None => 0.0,
        };
        (n * own + m * other) / (n + m)
    });
    Hessian::from_matrix(matrix, Some(width))
}

#[cfg(test)]
mod tests {
    use super::*;
    use openwork::hessian::HessianSum;

    fn hessian(rows: usize, width: usize) -> Hessian {
        let x = Matrix::from_fn(rows, width, |i, j| ((i * 7 + j * 3) % 5) as f32 - 2.0);
        let mut sum = HessianSum::new(width);
        sum.add(x.view()).unwrap();
        sum.finish().unwrap()
    }

    #[test]
    fn a_mixture_is_what_its_tokens_and_the_layer_say() {
        let (own, common) = (hessian(2, 6), hessian(40, 6));
        let mix = mixed(Some(&own), 2, Some(&common), 6).unwrap();
        for i in 0..6 {
            for j in 0..6 {
                let want = (2.0 * own.matrix().row(i)[j] + 4.0 * common.matrix().row(i)[j]) / 6.0;
                assert!((mix.matrix().row(i)[j] - want).abs() < 1e-12);
            }
        }
        // No token at all: the layer's statistics, or none.
        assert_eq!(mixed(None, 0, Some(&common), 6).unwrap().matrix(), common.matrix());
        let none = mixed(None, 0, None, 3).unwrap();
        assert_eq!(none.matrix().data(), [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]);
    }
}
