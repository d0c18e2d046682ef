//! What the program carries: a small model, and texts for it.
//!
//! The texts are written by a generator whose entropy is known; see
//! `demo/README.md`. Everywhere a model or a text is asked for, `demo` is one.

/// The files of the model's folder, by name.
pub(crate) const FILES: &[(&str, &[u8])] = &[
    ("config.json", include_bytes!("../demo/config.json")),
    ("generation_config.json", include_bytes!("../demo/generation_config.json")),
    ("model.safetensors", include_bytes!("../demo/model.safetensors")),
    ("tokenizer.json", include_bytes!("../demo/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../demo/tokenizer_config.json")),
];

/// A text to calibrate on.
pub const CALIBRATION: &str = include_str!("../demo/calibration.txt");

/// A text to evaluate on.
pub const EVALUATION: &str = include_str!("../demo/evaluation.txt");

/// The perplexity per token of [`EVALUATION`] under the generator that wrote
/// it: the least that any model can hope for.
pub fn token_perplexity() -> f64 {
    #[derive(serde::Deserialize)]
    struct Entropy {
        token_perplexity: f64,
    }
    let entropy: Result<Entropy, _> = serde_json::from_str(include_str!("../demo/entropy.json"));
    // Carried by the program, and read in a test.
    entropy.map_or(f64::NAN, |entropy| entropy.token_perplexity)
}
