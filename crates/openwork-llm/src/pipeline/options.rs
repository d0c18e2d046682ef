//! The options of a run, defined once.
//!
//! [`OPTIONS`] is the one list: the flags of `openwork prune`, the keywords of
//! Python's `prune_model`, the flags of `python -m openwork.ray prune` and the
//! table in docs/pruning.md are made from it. To add an option, add an entry to
//! `options!` at the end of this file and use the field.

use super::PipelineError;
use crate::checkpoint::Dtype;
use crate::format::parse_bytes;
use crate::recover::{Recovery, RecoveryError};
use regex::Regex;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

/// Default number of tokens in a calibration window, unless the model's limit is lower.
pub(super) const SEQ_LEN: usize = 1024;
/// The same for encoders, whose texts are mostly sentences and paragraphs.
pub(super) const ENCODER_SEQ_LEN: usize = 128;

/// One option of a run.
#[derive(Clone, Copy, Debug)]
pub struct RunOption {
    /// The field of [`RunOptions`] and Python's keyword, such as `seq_len`.
    pub name: &'static str,
    /// The kind of its value.
    pub kind: OptionKind,
    /// Placeholder of its value in the help; empty for a flag without a value.
    pub value: &'static str,
    /// The default as shown to the user, if there is one.
    pub default: Option<&'static str>,
    /// Whether it must be given.
    pub required: bool,
    /// The command's short flag.
    pub short: Option<char>,
    /// Other names of the command's flag, which its help does not list.
    pub aliases: &'static [&'static str],
    /// The heading that it is listed under.
    pub group: &'static str,
    /// The help text, on one line.
    pub help: &'static str,
}

/// The kind of value that an option takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionKind {
    /// On or off. The command's flag takes `on` or `off` if it has a value name.
    Flag,
    /// A whole number from 0 on.
    Count,
    /// A text.
    Text,
    /// A number of bytes, such as `4G`.
    Bytes,
    /// A file or folder.
    Path,
    /// Files; the command's flag can be given several times.
    Paths,
}

impl OptionKind {
    /// Its name in the Python bindings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flag => "flag",
            Self::Count => "count",
            Self::Text => "text",
            Self::Bytes => "bytes",
            Self::Path => "path",
            Self::Paths => "paths",
        }
    }
}

impl RunOption {
    /// The option with this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        OPTIONS.iter().find(|option| option.name == name)
    }

    /// The command's flag without its dashes: `seq-len`.
    pub fn flag(&self) -> String {
        self.name.replace('_', "-")
    }

    /// Help and default in one line.
    pub fn description(&self) -> String {
        match self.default {
            Some(default) => format!("{} [default: {default}]", self.help),
            None => self.help.to_string(),
        }
    }
}

/// How messages spell options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spelling {
    /// As flags of the command: `--max-memory 4G`, `--resume`.
    Flags,
    /// As keywords of Python: `max_memory='4G'`, `resume=True`.
    Keywords,
}

impl Spelling {
    /// An option, with a value if there is one.
    pub fn option(self, option: &RunOption, value: Option<&str>) -> String {
        match (self, value) {
            (Self::Flags, Some(value)) => format!("--{} {value}", option.flag()),
            (Self::Flags, None) => format!("--{}", option.flag()),
            (Self::Keywords, Some(value)) => match option.kind {
                OptionKind::Count => format!("{}={value}", option.name),
                _ => format!("{}='{value}'", option.name),
            },
            (Self::Keywords, None) if option.kind == OptionKind::Flag => {
                format!("{}=True", option.name)
            }
            (Self::Keywords, None) => option.name.to_string(),
        }
    }

    /// Replaces `{name}` in a library message by the spelled option of that name.
    pub fn message(self, message: &str) -> String {
        OPTIONS.iter().fold(message.to_string(), |message, option| {
            let marker = format!("{{{}}}", option.name);
            match message.contains(&marker) {
                true => message.replace(&marker, &self.option(option, None)),
                false => message,
            }
        })
    }
}

/// A value as the command line or Python gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OptionValue {
    /// On or off.
    Flag(bool),
    /// A whole number from 0 on.
    Count(u64),
    /// A text or a path.
    Text(OsString),
    /// Several paths.
    Texts(Vec<OsString>),
}

impl fmt::Display for OptionValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(on) => write!(f, "{on}"),
            Self::Count(count) => write!(f, "{count}"),
            Self::Text(text) => write!(f, "{}", text.to_string_lossy()),
            Self::Texts(texts) => {
                let texts: Vec<_> = texts.iter().map(|text| text.to_string_lossy()).collect();
                write!(f, "{}", texts.join(" "))
            }
        }
    }
}

/// The type of a field: what it takes, and how it is read.
trait Field: Sized {
    const KIND: OptionKind;
    const REQUIRED: bool = false;
    /// The value, or what to give instead.
    fn read(value: OptionValue) -> Result<Self, String>;
}

impl Field for bool {
    const KIND: OptionKind = OptionKind::Flag;
    fn read(value: OptionValue) -> Result<Self, String> {
        match value {
            OptionValue::Flag(on) => Ok(on),
            OptionValue::Text(text) if text == "on" => Ok(true),
            OptionValue::Text(text) if text == "off" => Ok(false),
            _ => Err("give on or off".to_string()),
        }
    }
}

impl Field for u64 {
    const KIND: OptionKind = OptionKind::Count;
    fn read(value: OptionValue) -> Result<Self, String> {
        match value {
            OptionValue::Count(count) => Ok(count),
            _ => Err("give a whole number of at least 0".to_string()),
        }
    }
}

impl Field for usize {
    const KIND: OptionKind = OptionKind::Count;
    fn read(value: OptionValue) -> Result<Self, String> {
        u64::read(value)?.try_into().map_err(|_| "that is too large".to_string())
    }
}

impl Field for String {
    const KIND: OptionKind = OptionKind::Text;
    fn read(value: OptionValue) -> Result<Self, String> {
        match value {
            OptionValue::Text(text) => {
                text.into_string().map_err(|_| "it is not valid UTF-8".to_string())
            }
            _ => Err("give a string".to_string()),
        }
    }
}

impl Field for PathBuf {
    const KIND: OptionKind = OptionKind::Path;
    const REQUIRED: bool = true;
    fn read(value: OptionValue) -> Result<Self, String> {
        match value {
            OptionValue::Text(text) => Ok(text.into()),
            _ => Err("give a path".to_string()),
        }
    }
}

impl Field for Vec<PathBuf> {
    const KIND: OptionKind = OptionKind::Paths;
    fn read(value: OptionValue) -> Result<Self, String> {
        match value {
            OptionValue::Text(text) => Ok(vec![text.into()]),
            OptionValue::Texts(texts) => Ok(texts.into_iter().map(PathBuf::from).collect()),
            _ => Err("give one or more paths".to_string()),
        }
    }
}

impl Field for Recovery {
    const KIND: OptionKind = OptionKind::Text;
    fn read(value: OptionValue) -> Result<Self, String> {
        String::read(value)?.parse().map_err(|error: RecoveryError| error.to_string())
    }
}

impl Field for Regex {
    const KIND: OptionKind = OptionKind::Text;
    fn read(value: OptionValue) -> Result<Self, String> {
        regular_expression(&String::read(value)?)
    }
}

/// Parses a regular expression; the error says why it is not valid.
pub(super) fn regular_expression(text: &str) -> Result<Regex, String> {
    Regex::new(text).map_err(|error| format!("not a valid regular expression: {error}"))
}

/// A type that weights can be written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputDtype(pub Dtype);

impl Field for OutputDtype {
    const KIND: OptionKind = OptionKind::Text;
    fn read(value: OptionValue) -> Result<Self, String> {
        match String::read(value)?.as_str() {
            "bf16" | "bfloat16" => Ok(Self(Dtype::BF16)),
            "f16" | "float16" => Ok(Self(Dtype::F16)),
            "f32" | "float32" => Ok(Self(Dtype::F32)),
            _ => Err("give bf16, f16 or f32".to_string()),
        }
    }
}

impl OutputDtype {
    /// Reads the name of a type.
    pub fn parse(name: &str) -> Result<Self, PipelineError> {
        Self::read(OptionValue::Text(name.into()))
            .map_err(|why| PipelineError::option("dtype", name, why))
    }
}

/// A number of bytes, with the text from which it was parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByteCount {
    /// The number.
    pub bytes: u64,
    text: String,
}

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Field for ByteCount {
    const KIND: OptionKind = OptionKind::Bytes;
    fn read(value: OptionValue) -> Result<Self, String> {
        let text = value.to_string();
        match (&value, parse_bytes(&text)) {
            (OptionValue::Count(0), _) => Ok(Self { bytes: 0, text }),
            (OptionValue::Text(zero), _) if zero == "0" => Ok(Self { bytes: 0, text }),
            (OptionValue::Flag(_), _) | (_, None) => Err("give a size such as 4G or 800M".into()),
            (_, Some(bytes)) => Ok(Self { bytes, text }),
        }
    }
}

impl<T: Field> Field for Option<T> {
    const KIND: OptionKind = T::KIND;
    fn read(value: OptionValue) -> Result<Self, String> {
        T::read(value).map(Some)
    }
}

/// Generates [`RunOptions`] and [`OPTIONS`] from one list: help, field, type, default,
/// and the other fields of [`RunOption`].
macro_rules! options {
    ($($(#[doc = $help:literal])+ $name:ident: $type:ty $(= $default:literal)? => {
        $($key:ident: $value:expr),+
    };)+) => {
        /// The options of a run, as requested by the user.
        #[derive(Clone, Debug)]
        pub struct RunOptions {
            $($(#[doc = $help])+ pub $name: $type,)+
        }

        /// Every option of a run.
        pub const OPTIONS: &[RunOption] = &[$(RunOption {
            name: stringify!($name),
            kind: <$type as Field>::KIND,
            required: <$type as Field>::REQUIRED,
            help: concat!($($help),+).trim_ascii(),
            $($key: $value,)+
            ..RunOption {
                name: "", kind: OptionKind::Flag, value: "", required: false, short: None,
                aliases: &[], group: "", help: "",
                default: options!(@words $($default)?),
            }
        },)+];

        impl Default for RunOptions {
            fn default() -> Self {
                Self { $($name: options!(@value $($default)?),)+ }
            }
        }

        impl RunOptions {
            /// Sets one option.
            fn set(&mut self, name: &str, value: OptionValue) -> Result<(), PipelineError> {
                let text = value.to_string();
                match name {
                    $(stringify!($name) => {
                        self.$name = Field::read(value)
                            .map_err(|why| PipelineError::option(stringify!($name), text, why))?;
                    })+
                    _ => return Err(PipelineError::Plan(format!("there is no option {name}"))),
                }
                Ok(())
            }
        }
    };
    (@words) => { None };
    (@words $default:literal) => { Some(stringify!($default)) };
    (@value) => { Default::default() };
    (@value $default:literal) => { $default };
}

pub(super) const PATTERN: &str = "Pattern and method";
const CALIBRATION: &str = "Calibration";
const EVALUATION: &str = "Evaluation";
const OUTPUT: &str = "Output";
const EXECUTION: &str = "Execution";

options! {
    /// Sparsity pattern for every linear layer that no recipe rule matches
    spec: Option<String> => { group: PATTERN, value: "SPEC" };
    /// Pruning method (see `openwork methods`)
    method: Option<String> => {
        group: PATTERN, value: "METHOD", default: Some(super::METHOD), aliases: &["prune_method"]
    };
    /// TOML file that assigns patterns and methods to tensors, in one or more passes
    recipe: Option<PathBuf> => { group: PATTERN, value: "FILE" };
    /// Prune only tensors whose names match this regular expression
    include: Option<Regex> => { group: PATTERN, value: "REGEX" };
    /// Do not prune tensors whose names match this regular expression
    exclude: Option<Regex> => { group: PATTERN, value: "REGEX" };
    /// Remove pruned heads and channels, for a smaller dense model
    remove: bool => { group: PATTERN };
    /// Train the kept weights: blocks, halves, model, or a chain such as blocks+model
    recover: Option<Recovery> => { group: PATTERN, value: "STAGES" };
    /// Calibration text: a .txt file, a .jsonl file with a `text` field, or `demo`
    calib: PathBuf => { group: CALIBRATION, value: "TEXT" };
    /// Number of calibration windows
    samples: usize = 128 => { group: CALIBRATION, value: "N", aliases: &["nsamples"] };
    /// Tokens per calibration window
    seq_len: Option<usize> => {
        group: CALIBRATION, value: "N", default: Some("1024 (128 for an encoder), or the model's limit"),
        aliases: &["seqlen"]
    };
    /// Number of additional windows of a single token each
    single_tokens: Option<usize> => {
        group: CALIBRATION, value: "N", default: Some("one per 16 calibration tokens"),
        aliases: &["starts"]
    };
    /// Random seed for sampling calibration windows
    seed: u64 = 0 => { group: CALIBRATION, value: "N" };
    /// Recapture inputs after pruning each of q/k/v, o, gate/up and down: `on` or `off`
    sequential: bool => { group: CALIBRATION, value: "on|off", default: Some("off") };
    /// Measure perplexity of the dense and the pruned model on this text; for an encoder, the
    /// cosine similarity between their sentence embeddings, one text per line
    eval: Option<PathBuf> => { group: EVALUATION, value: "TEXT" };
    /// Also measure perplexity after every N layers
    eval_every: Option<usize> => { group: EVALUATION, value: "N" };
    /// Use only the first N tokens of the evaluation text
    eval_tokens: Option<usize> => { group: EVALUATION, value: "N", default: Some("all") };
    /// Tokens per evaluation window
    eval_seq_len: Option<usize> => {
        group: EVALUATION, value: "N", default: Some("2048, or the model's limit")
    };
    /// Measure the accuracy of the dense and the pruned model on this task (see `openwork eval`); can be given several times
    task: Vec<PathBuf> => { group: EVALUATION, value: "FILE" };
    /// Use only the first N documents of every task
    task_limit: Option<usize> => { group: EVALUATION, value: "N", default: Some("all") };
    /// Output folder; must be new or empty unless a run is resumed or overwritten
    out: PathBuf => {
        group: OUTPUT, value: "DIR", short: Some('o'), aliases: &["save", "save_model"]
    };
    /// Type of the written weights: bf16, f16 or f32
    dtype: Option<OutputDtype> => {
        group: OUTPUT, value: "TYPE", default: Some("the model's own; bf16 for GGUF")
    };
    /// Resume an interrupted run, or start if there is none
    resume: bool => { group: OUTPUT };
    /// Overwrite the output of an earlier run
    force: bool => { group: OUTPUT };
    /// Print the plan and the memory, disk and time it needs; write nothing
    dry_run: bool => { group: EXECUTION };
    /// Memory limit per process, such as 4G; hidden states spill to a file if needed
    max_memory: Option<ByteCount> => { group: EXECUTION, value: "BYTES" };
    /// Maximum size of hidden states in memory; the rest spills to a file
    spill_over: Option<ByteCount> => { group: EXECUTION, value: "BYTES", default: Some("unlimited") };
    /// Print progress as JSON lines on stderr
    events: bool => { group: EXECUTION };
}

impl RunOptions {
    /// Options by name; those that are not given have their defaults.
    pub fn from_values<'a>(
        values: impl IntoIterator<Item = (&'a str, OptionValue)>,
    ) -> Result<Self, PipelineError> {
        let mut options = Self::default();
        let mut given = Vec::new();
        for (name, value) in values {
            options.set(name, value)?;
            given.push(name);
        }
        let missing = |option: &&RunOption| option.required && !given.contains(&option.name);
        match OPTIONS.iter().find(missing) {
            Some(option) => Err(PipelineError::Plan(format!("{{{}}} is required", option.name))),
            None => Ok(options),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn text(text: &str) -> OptionValue {
        OptionValue::Text(text.into())
    }

    #[test]
    fn names_are_unique_and_every_option_is_described() {
        let mut names = BTreeSet::new();
        for option in OPTIONS {
            let flags = option.aliases.iter().map(|alias| alias.to_string());
            for name in flags.chain([option.flag()]) {
                assert!(names.insert(name.clone()), "{name} is there twice");
            }
            assert!(!option.group.is_empty() && !option.help.is_empty(), "{}", option.name);
            assert!(option.help.starts_with(char::is_uppercase), "{}", option.help);
            assert!(!option.help.ends_with('.'), "{}", option.help);
            let valued = option.kind != OptionKind::Flag;
            assert!(!valued || !option.value.is_empty(), "{} needs a value name", option.name);
        }
    }

    #[test]
    fn values_are_read_and_mistakes_name_the_option() {
        let paths = [("calib", text("c.txt")), ("out", text("o"))];
        let read =
            |name, value| RunOptions::from_values(paths.clone().into_iter().chain([(name, value)]));
        let options = read("samples", OptionValue::Count(3)).unwrap();
        assert_eq!((options.samples, options.seed, options.remove), (3, 0, false));
        assert_eq!(
            read("max_memory", text("4G")).unwrap().max_memory.unwrap().bytes,
            4_000_000_000
        );
        assert!(read("sequential", text("on")).unwrap().sequential);
        let why = |name, value| read(name, value).unwrap_err().spelled(Spelling::Keywords);
        assert_eq!(why("samples", text("x")), "samples=x: give a whole number of at least 0");
        assert_eq!(why("dtype", text("f8")), "dtype='f8': give bf16, f16 or f32");
        assert_eq!(
            why("max_memory", text("4X")),
            "max_memory='4X': give a size such as 4G or 800M"
        );
        assert!(
            why("include", text("(")).starts_with("include='(': not a valid regular expression")
        );
        let missing = RunOptions::from_values([("calib", text("c"))]).unwrap_err();
        assert_eq!(missing.spelled(Spelling::Flags), "--out is required");
    }

    #[test]
    fn messages_spell_options_as_the_front_does() {
        let message = "give {resume}, {max_memory} or {nothing}";
        assert_eq!(Spelling::Flags.message(message), "give --resume, --max-memory or {nothing}");
        assert_eq!(
            Spelling::Keywords.message(message),
            "give resume=True, max_memory or {nothing}"
        );
        let option = RunOption::find("max_memory").unwrap();
        assert_eq!(Spelling::Flags.option(option, Some("4G")), "--max-memory 4G");
        assert_eq!(Spelling::Keywords.option(option, Some("4G")), "max_memory='4G'");
    }
}
