//! How far the vectors of one model are from those of another.

use openwork::Matrix;

/// Cosine similarities of the vectors of two models for the same texts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Similarity {
    /// The mean over texts.
    pub mean: f64,
    /// The least of any text.
    pub least: f64,
    /// Which text it belongs to.
    pub least_text: usize,
}

impl Similarity {
    /// Compares `[texts, hidden]` with `[texts, hidden]`.
    ///
    /// ```text
    /// cos(a, b) = a . b / (|a| |b|)
    /// ```
    ///
    /// # Panics
    ///
    /// If the shapes differ, or there are no texts.
    pub fn new(a: &Matrix, b: &Matrix) -> Self {
        assert_eq!((a.rows(), a.cols()), (b.rows(), b.cols()), "vectors of the same texts");
        let all: Vec<f64> = (0..a.rows()).map(|row| cosine(a.row(row), b.row(row))).collect();
        let (least_text, &least) = (all.iter().enumerate())
            .min_by(|(_, x), (_, y)| x.total_cmp(y))
            .expect("at least one text");
        Self { mean: all.iter().sum::<f64>() / all.len() as f64, least, least_text }
    }
}

/// The cosine of the angle between two vectors; a vector of zeros is like no other.
fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    if lengths > 0.0 { (dot(a, b) / lengths).clamp(-1.0, 1.0) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_similar_text_is_named() {
        let a = Matrix::from_vec(3, 2, vec![1.0, 0.0, 0.0, 2.0, 3.0, 3.0]);
        let b = Matrix::from_vec(3, 2, vec![5.0, 0.0, 1.0, 0.0, 1.0, 1.0]);
        let found = Similarity::new(&a, &b);
        assert!((found.mean - 2.0 / 3.0).abs() < 1e-12);
        assert_eq!((found.least, found.least_text), (0.0, 1));
        assert!((Similarity::new(&a, &a).mean - 1.0).abs() < 1e-12);
    }
}
