//! The built-in model and texts, which `demo` names wherever a model or a text is
//! expected.
//!
//! The texts were produced by a generator of known entropy; see `demo/README.md`.

/// The files of the model's folder.
pub(crate) const FILES: &[(&str, &[u8])] = &[
    ("config.json", include_bytes!("../demo/config.json")),
    ("generation_config.json", include_bytes!("../demo/generation_config.json")),
    ("model.safetensors", include_bytes!("../demo/model.safetensors")),
    ("tokenizer.json", include_bytes!("../demo/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../demo/tokenizer_config.json")),
];

/// The calibration text.
pub const CALIBRATION: &str = include_str!("../demo/calibration.txt");

/// The evaluation text.
pub const EVALUATION: &str = include_str!("../demo/evaluation.txt");

/// The token perplexity of [`EVALUATION`] under the generator that produced it: a
/// lower bound for any model.
pub fn token_perplexity() -> f64 {
    #[derive(serde::Deserialize)]
    struct Entropy {
        token_perplexity: f64,
    }
    let entropy: Result<Entropy, _> = serde_json::from_str(include_str!("../demo/entropy.json"));
    // Embedded in the program and checked by a test.
    entropy.map_or(f64::NAN, |entropy| entropy.token_perplexity)
}
