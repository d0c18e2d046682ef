//! Texts that the user names: files, or those that the program carries.

use crate::failure::Failure;
use openwork_llm::demo;
use openwork_llm::tokens::{join, read_text};
use std::path::Path;

/// What a text is wanted for.
#[derive(Clone, Copy, Debug)]
pub enum Use {
    /// Inputs are measured on it.
    Calibrate,
    /// Perplexity is measured on it.
    Evaluate,
}

/// The documents of a file as one text; `demo` is carried by the program.
pub fn read(path: &Path, use_: Use) -> Result<String, Failure> {
    if path == Path::new("demo") && !path.exists() {
        let text = match use_ {
            Use::Calibrate => demo::CALIBRATION,
            Use::Evaluate => demo::EVALUATION,
        };
        return Ok(text.to_string());
    }
    Ok(join(&read_text(path).map_err(Failure::input)?))
}
