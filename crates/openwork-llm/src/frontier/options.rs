//! What a frontier consists of: value types, patterns, methods, and files.

use super::FrontierError;
use crate::evaluate;
use crate::pipeline::METHOD;
use crate::pipeline::structure::STRUCTURES;
use openwork::prune::Method;
use openwork::sparse::Encoding;
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// Value types that are compared if none are given.
pub const VALUES: [&str; 3] = ["bf16", "int8", "int4"];

/// The value type of embedding and head beside linears with codes, if none is given: 8 bits
/// cost no perplexity.
const HEAD: &str = "int8";

/// The options of a frontier.
#[derive(Clone, Debug)]
pub struct FrontierOptions {
    /// Evaluation text.
    pub text: PathBuf,
    /// How it is evaluated.
    pub evaluation: evaluate::Options,
    /// Task files on which accuracy is measured.
    pub tasks: Vec<PathBuf>,
    /// Documents of every task that are used; all if `None`.
    pub task_limit: Option<usize>,
    /// Output folders of `prune`, packed models, GGUF files.
    pub inputs: Vec<PathBuf>,
    /// Patterns to prune to.
    pub specs: Vec<String>,
    /// Value types.
    pub values: Vec<String>,
    /// Methods to prune by.
    pub methods: Vec<String>,
    /// Value type of embedding and head, where linears have codes.
    pub head: Option<String>,
    /// Values that share a scale.
    pub group: usize,
    /// Calibration text; needed to prune, and to round to 4 bits by `+quant`.
    pub calib: Option<PathBuf>,
    /// Calibration windows.
    pub samples: usize,
    /// Tokens per calibration window.
    pub seq_len: Option<usize>,
    /// The folder with what is finished; a later call continues there.
    pub work: PathBuf,
    /// Tokens to generate in each turn.
    pub tokens: NonZeroUsize,
    /// Turns; the fastest counts.
    pub turns: NonZeroUsize,
    /// Maximum size of the recommended point, in bytes.
    pub size: Option<u64>,
    /// Minimum speed of the recommended point, in tokens per second.
    pub speed: Option<f64>,
}

/// A stored form of a model, with the value types of its linears and its head.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StoredAs {
    pub linears: Encoding,
    pub head: Option<Encoding>,
}

/// A run of `prune` that a point needs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PruneRun {
    pub spec: String,
    pub method: String,
    /// Whether pruned channels and heads leave the tensors.
    pub remove: bool,
}

/// A point to be made from the model itself.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Variant {
    pub name: String,
    pub pruned: bool,
    pub run: Option<PruneRun>,
    /// How it is stored; the codes of its run if there are any.
    pub stored: StoredAs,
    pub note: String,
}

impl FrontierOptions {
    /// The value types, checked.
    pub(super) fn stored(&self) -> Result<Vec<StoredAs>, FrontierError> {
        let encoding = |flag: &str, name: &str| {
            Encoding::new(name, self.group)
                .map_err(|why| FrontierError::Input(format!("--{flag} {name}: {why}")))
        };
        let head = self.head.as_deref();
        let head = encoding("head", head.unwrap_or(HEAD)).map(|head_type| (head_type, head))?;
        let names: Vec<&str> = match self.values.is_empty() {
            true => VALUES.to_vec(),
            false => self.values.iter().map(String::as_str).collect(),
        };
        let stored = |name: &str| {
            let linears = encoding("values", name)?;
            let codes = linears.kind().has_codes();
            let head = if codes || head.1.is_some() { head.0 } else { linears };
            Ok(StoredAs { linears, head: Some(head) })
        };
        names.into_iter().map(stored).collect()
    }

    /// The points to make of the model itself.
    pub(super) fn variants(&self) -> Result<Vec<Variant>, FrontierError> {
        let stored = self.stored()?;
        if self.calib.is_none() && !self.specs.is_empty() {
            let why = "--spec prunes the model, which needs a calibration text; give --calib";
            return Err(FrontierError::Input(why.to_string()));
        }
        let mut variants = Vec::new();
        for stored in &stored {
            let four = stored.linears.kind().bits == 4;
            let run = (four && self.calib.is_some()).then(|| PruneRun {
                spec: "keep 100%".to_string(),
                method: format!("magnitude{}", quant(stored)),
                remove: false,
            });
            let note = if four && run.is_none() { PLAIN } else { "" };
            let (name, note) = (format!("dense {}", stored.linears), note.to_string());
            variants.push(Variant { name, pruned: false, run, stored: stored.clone(), note });
        }
        let methods = match self.methods.is_empty() {
            true => vec![METHOD.to_string()],
            false => self.methods.clone(),
        };
        for spec in &self.specs {
            for method in &methods {
                let parsed: Method =
                    method.parse().map_err(|error| FrontierError::Input(format!("{error}")))?;
                // A run that rounds to codes is stored in those.
                let own = parsed.encoding();
                let remove = STRUCTURES.iter().any(|s| spec.trim().starts_with(s.name));
                let shown = if methods.len() > 1 { format!(" {method}") } else { String::new() };
                for stored in &stored {
                    if own.is_some_and(|own| own != stored.linears) {
                        continue;
                    }
                    let four = stored.linears.kind().bits == 4 && own.is_none();
                    // What is left of removed structures is another model, rounded as it is.
                    let quantized = four && !remove;
                    let method = match quantized {
                        true => format!("{method}{}", quant(stored)),
                        false => method.clone(),
                    };
                    let note = if four && remove { PLAIN } else { "" };
                    variants.push(Variant {
                        name: format!("{spec} {}{shown}", stored.linears),
                        pruned: true,
                        run: Some(PruneRun { spec: spec.clone(), method, remove }),
                        stored: stored.clone(),
                        note: note.to_string(),
                    });
                }
            }
        }
        Ok(variants)
    }
}

/// The note on 4 bits without calibration.
const PLAIN: &str = "rounded without compensation";

/// The modifier that rounds to the codes of a stored form.
fn quant(stored: &StoredAs) -> String {
    let bits = stored.linears.kind().bits;
    format!("+quant[bits={bits},group={}]", stored.linears.group())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn options(work: PathBuf) -> FrontierOptions {
        FrontierOptions {
            text: "demo".into(),
            evaluation: evaluate::Options {
                seq_len: Some(32),
                max_tokens: Some(128),
                ..evaluate::Options::default()
            },
            tasks: Vec::new(),
            task_limit: None,
            inputs: Vec::new(),
            specs: Vec::new(),
            values: Vec::new(),
            methods: Vec::new(),
            head: None,
            group: Encoding::DEFAULT_GROUP,
            calib: None,
            samples: 8,
            seq_len: Some(32),
            work,
            tokens: NonZeroUsize::MIN,
            turns: NonZeroUsize::MIN,
            size: None,
            speed: None,
        }
    }

    fn names(options: &FrontierOptions) -> Vec<String> {
        options.variants().unwrap().into_iter().map(|variant| variant.name).collect()
    }

    #[test]
    fn variants_are_all_value_types_of_all_patterns() {
        let mut options = options("w".into());
        assert_eq!(names(&options), ["dense bf16", "dense int8", "dense int4"]);
        options.specs = vec!["2:4".to_string()];
        let error = options.variants().unwrap_err().to_string();
        assert!(error.contains("give --calib"), "{error}");
        options.calib = Some("demo".into());
        options.values = vec!["int4".to_string()];
        let variants = options.variants().unwrap();
        let methods: Vec<&str> =
            variants.iter().map(|v| v.run.as_ref().unwrap().method.as_str()).collect();
        let quant = "+quant[bits=4,group=32]";
        assert_eq!(methods, [format!("magnitude{quant}"), format!("{METHOD}{quant}")]);
        assert_eq!((variants[0].pruned, variants[1].pruned), (false, true));
        // A method that rounds is measured with its own codes only.
        options.values = vec!["int8".to_string(), "int4".to_string()];
        options.methods = vec!["wanda+quant[bits=8]".to_string()];
        assert_eq!(names(&options), ["dense int8", "dense int4", "2:4 int8"]);
        options.specs = vec!["mlp keep 75%".to_string()];
        options.methods = vec!["s-obs".to_string()];
        let variants = options.variants().unwrap();
        assert!(variants[2..].iter().all(|v| v.run.as_ref().unwrap().remove));
        options.values = vec!["int3".to_string()];
        let error = options.variants().unwrap_err().to_string();
        assert!(error.starts_with("--values int3: value type `int3` is unknown"), "{error}");
    }
}
