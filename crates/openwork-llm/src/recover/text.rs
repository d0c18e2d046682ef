//! The text of a recovery: stages joined by plus signs, with options in brackets.

use super::optimizer::Schedule;
use crate::model::Parameter;
use openwork::prune::{OptionInfo, Settings, hint, parse_chain};
use std::fmt;
use std::str::FromStr;

/// What a stage trains at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A decoder layer.
    Block,
    /// Attention, then the MLP.
    Half,
    /// The whole model.
    Model,
}

/// A row of [`STAGES`].
pub struct StageInfo {
    /// Its name in recovery text.
    pub name: &'static str,
    /// One line of help.
    pub summary: &'static str,
    /// What it trains at a time.
    pub unit: Unit,
    /// The options it takes in brackets.
    pub options: &'static [OptionInfo],
}

const EPOCHS: OptionInfo = OptionInfo {
    name: "epochs",
    values: "a whole number",
    default: "4",
    help: "number of passes over the calibration windows",
};
const STEPS: OptionInfo = OptionInfo {
    name: "steps",
    values: "a whole number",
    default: "400",
    help: "number of optimizer steps",
};
const SEQ_LEN: OptionInfo = OptionInfo {
    name: "seq_len",
    values: "a whole number | auto",
    default: "auto",
    help: "tokens per window, sampled afresh from the calibration text; auto is 512, or the model's limit",
};
const LR: OptionInfo = OptionInfo {
    name: "lr",
    values: "a number | auto",
    default: "auto",
    help: "peak learning rate of Adam; auto lowers it until training reduces the held-out loss",
};
const MODEL_LR: OptionInfo = OptionInfo {
    help: "peak learning rate of Adam; auto compares short trials by their held-out loss",
    ..LR
};
const SCHEDULE: OptionInfo = OptionInfo {
    name: "schedule",
    values: "linear | cosine | constant",
    default: "linear",
    help: "how the learning rate decays after the warm-up",
};
const BATCH: OptionInfo =
    OptionInfo { name: "batch", values: "a whole number", default: "1", help: "windows per step" };
const TRAIN: OptionInfo = OptionInfo {
    name: "train",
    values: "all | weights | norms",
    default: "all",
    help: "what is trained: kept weights, biases and norms; kept weights; or norms and biases",
};
const DECAY: OptionInfo = OptionInfo {
    name: "decay",
    values: "a number | 0",
    default: "0",
    help: "weight decay towards the pruned weights, times the learning rate",
};
const REGROW: OptionInfo = OptionInfo {
    name: "regrow",
    values: "a fraction | 0",
    default: "0",
    help: "fraction of the kept blocks that move within their scopes at the first update of the mask; later updates move fewer",
};
const EVERY: OptionInfo = OptionInfo {
    name: "every",
    values: "a whole number",
    default: "20",
    help: "steps between updates of the mask, with regrow",
};
const LOSS: OptionInfo = OptionInfo {
    name: "loss",
    values: "kl | ce | mix",
    default: "kl",
    help: "divergence from the dense model's distribution, next-token loss, or their mean",
};
const TEMPERATURE: OptionInfo = OptionInfo {
    name: "temperature",
    values: "a number",
    default: "1",
    help: "softmax temperature of both distributions in the kl loss",
};

const STATES: OptionInfo = OptionInfo {
    name: "states",
    values: "a number | 0",
    default: "0",
    help: "weight of the distance to the dense model's states after each layer",
};

const PRECISION: OptionInfo = OptionInfo {
    name: "precision",
    values: "bf16 | f32",
    default: "bf16",
    help: "bf16 rounds the operands of matrix products in training, where the processor has faster instructions for that; weights, gradients and sums are f32",
};

/// The options of a stage that trains layers.
const LAYER_OPTIONS: &[OptionInfo] =
    &[EPOCHS, LR, SCHEDULE, BATCH, TRAIN, DECAY, REGROW, EVERY, PRECISION];

/// Every stage of a recovery.
pub const STAGES: &[StageInfo] = &[
    StageInfo {
        name: "blocks",
        summary: "trains each decoder layer towards the dense model's output of that layer",
        unit: Unit::Block,
        options: LAYER_OPTIONS,
    },
    StageInfo {
        name: "halves",
        summary: "as blocks, but trains attention and MLP one after the other",
        unit: Unit::Half,
        options: LAYER_OPTIONS,
    },
    StageInfo {
        name: "model",
        summary: "trains all layers together towards the dense model's token distribution",
        unit: Unit::Model,
        options: &[
            STEPS,
            SEQ_LEN,
            MODEL_LR,
            SCHEDULE,
            BATCH,
            TRAIN,
            DECAY,
            LOSS,
            TEMPERATURE,
            STATES,
            REGROW,
            EVERY,
            PRECISION,
        ],
    },
];

/// Which parameters are trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trained {
    /// Kept weights, biases and norms.
    All,
    /// Kept weights.
    Weights,
    /// Norms and biases.
    Norms,
}

impl Trained {
    /// Whether norms are trained.
    pub fn norms(self) -> bool {
        self != Self::Weights
    }

    /// Whether a parameter is trained.
    pub fn includes(self, parameter: Parameter) -> bool {
        match self {
            Self::All => true,
            Self::Weights => matches!(parameter, Parameter::Weight(_)),
            Self::Norms => !matches!(parameter, Parameter::Weight(_)),
        }
    }
}

/// What the whole model is trained towards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossKind {
    /// The dense model's distribution.
    Kl,
    /// The next token.
    CrossEntropy,
    /// The mean of both.
    Mix,
}

/// A stage with its options.
#[derive(Clone, Debug, PartialEq)]
pub struct StageOptions {
    /// What it trains at a time.
    pub unit: Unit,
    /// Number of passes over the windows, if it trains layers.
    pub epochs: usize,
    /// Steps of the optimizer, if it trains the model.
    pub steps: usize,
    /// Tokens per window, if it trains the model; 512 or the model's limit if not given.
    pub seq_len: Option<usize>,
    /// The peak learning rate; chosen automatically if not given.
    pub lr: Option<f64>,
    /// How it decays.
    pub schedule: Schedule,
    /// Windows per step.
    pub batch: usize,
    /// Which parameters are trained.
    pub trained: Trained,
    /// Pull towards the pruned weights.
    pub decay: f64,
    /// Share of the kept blocks that move at the first update of the mask; 0 if it is fixed.
    pub regrow: f64,
    /// Steps between updates of the mask.
    pub every: usize,
    /// The loss, if it trains the model.
    pub loss: LossKind,
    /// Softmax temperature of both distributions.
    pub temperature: f64,
    /// Weight of the distance to the dense model's states after each layer.
    pub states: f64,
    /// Whether matrix products may round their operands to bf16.
    pub rounds: bool,
    text: String,
}

/// As [`Recovery`] reads it.
impl fmt::Display for StageOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Stages that run one after the other.
///
/// ```
/// use openwork_llm::recover::Recovery;
/// let recovery: Recovery = "blocks[epochs=2] + model[lr=1e-4]".parse().unwrap();
/// assert_eq!(recovery.to_string(), "blocks[epochs=2]+model[lr=1e-4]");
/// assert_eq!(recovery.stages[0].epochs, 2);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Recovery {
    /// In their order, at least one.
    pub stages: Vec<StageOptions>,
}

/// Invalid recovery text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RecoveryError(String);

/// Learning rates of layers that are tried until one lowers the held-out loss, if none is
/// given.
const LAYER_RATES: [f64; 3] = [1e-3, 3e-4, 1e-4];

impl StageOptions {
    /// The learning rates to train with, until one lowers the held-out loss. Empty if
    /// trials choose them ([`next_rate`](super::next_rate)).
    pub fn rates(&self) -> Vec<f64> {
        match (self.lr, self.unit) {
            (Some(lr), _) => vec![lr],
            (None, Unit::Model) => Vec::new(),
            (None, _) => LAYER_RATES.to_vec(),
        }
    }

    /// Whether blocks move.
    pub fn moves(&self) -> bool {
        self.regrow > 0.0
    }

    /// Tokens per window of a model that takes at most `limit`, if it trains the model.
    pub fn window(&self, limit: usize) -> usize {
        self.seq_len.unwrap_or(limit.min(512))
    }
}

impl Recovery {
    /// The stages that train layers as they are pruned: the first one, if it does.
    pub fn layer_stage(&self) -> Option<&StageOptions> {
        self.stages.first().filter(|stage| stage.unit != Unit::Model)
    }

    /// The stages that train a model whose layers are all pruned.
    pub fn model_stages(&self) -> &[StageOptions] {
        &self.stages[usize::from(self.layer_stage().is_some())..]
    }
}

impl fmt::Display for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stages: Vec<String> = self.stages.iter().map(ToString::to_string).collect();
        f.write_str(&stages.join("+"))
    }
}

impl FromStr for Recovery {
    type Err = RecoveryError;

    fn from_str(text: &str) -> Result<Self, RecoveryError> {
        let chain = parse_chain(text).map_err(RecoveryError)?;
        let stages: Result<Vec<_>, _> =
            chain.iter().map(|(name, settings)| stage(name, settings)).collect();
        Ok(Self { stages: stages.map_err(RecoveryError)? })
    }
}

/// A stage by its name and options.
fn stage(name: &str, settings: &Settings) -> Result<StageOptions, String> {
    let known: Vec<&str> = STAGES.iter().map(|stage| stage.name).collect();
    let info = STAGES.iter().find(|stage| stage.name.eq_ignore_ascii_case(name));
    let info = info.ok_or_else(|| {
        let (hint, known) = (hint(name, &known), known.join(", "));
        format!("there is no recovery stage `{name}`; {hint}choose one of {known}")
    })?;
    let options: Vec<&str> = info.options.iter().map(|option| option.name).collect();
    if let Some((option, _)) = settings.iter().find(|(option, _)| !options.contains(option)) {
        let (name, hint, options) = (info.name, hint(option, &options), options.join(", "));
        return Err(format!("{name} has no option `{option}`; {hint}its options are {options}"));
    }
    let default = |option: &OptionInfo| option.default.parse().unwrap_or(1);
    let lr = match settings.get("lr") {
        None | Some("auto") => None,
        Some(_) => Some(settings.number("lr", 0.0)?),
    };
    let seq_len = match settings.get("seq_len") {
        None | Some("auto") => None,
        Some(_) => Some(settings.count("seq_len", 0, 2)?),
    };
    let decay = match settings.get("decay") {
        Some("0") => 0.0,
        _ => settings.number("decay", 0.0)?,
    };
    let states = match settings.get("states") {
        None | Some("0") => 0.0,
        Some(_) => settings.number("states", 0.0)?,
    };
    let regrow = match settings.get("regrow") {
        None | Some("0") => 0.0,
        Some(_) => settings.number("regrow", 0.0)?,
    };
    if regrow > 1.0 {
        return Err(format!("regrow={regrow}: expected a fraction from 0 to 1"));
    }
    let schedules = [
        ("linear", Schedule::Linear),
        ("cosine", Schedule::Cosine),
        ("constant", Schedule::Constant),
    ];
    let trained = [("all", Trained::All), ("weights", Trained::Weights), ("norms", Trained::Norms)];
    let losses = [("kl", LossKind::Kl), ("ce", LossKind::CrossEntropy), ("mix", LossKind::Mix)];
    let trained = settings.choice("train", &trained, Trained::All)?;
    if regrow > 0.0 && trained == Trained::Norms {
        return Err("train=norms: regrow moves weights, so these must be trained".to_string());
    }
    Ok(StageOptions {
        unit: info.unit,
        epochs: settings.count("epochs", default(&EPOCHS), 1)?,
        steps: settings.count("steps", default(&STEPS), 1)?,
        seq_len,
        lr,
        schedule: settings.choice("schedule", &schedules, Schedule::Linear)?,
        batch: settings.count("batch", default(&BATCH), 1)?,
        trained,
        decay,
        regrow,
        every: settings.count("every", default(&EVERY), 1)?,
        loss: settings.choice("loss", &losses, LossKind::Kl)?,
        temperature: settings.number("temperature", 1.0)?,
        states,
        rounds: settings.choice("precision", &[("bf16", true), ("f32", false)], true)?,
        text: settings.display(info.name),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(text: &str) -> String {
        text.parse::<Recovery>().unwrap_err().to_string()
    }

    #[test]
    fn every_stage_and_option_is_read_and_printed() {
        for info in STAGES {
            let plain: Recovery = info.name.parse().unwrap();
            assert_eq!((plain.to_string().as_str(), plain.stages[0].unit), (info.name, info.unit));
            for option in info.options {
                let text = format!("{}[{}={}]", info.name, option.name, option.default);
                let read: Recovery = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
                assert_eq!(read.to_string(), text);
                // A default that is written out changes nothing else.
                let mut stage = read.stages[0].clone();
                stage.text = info.name.to_string();
                assert_eq!(stage, plain.stages[0], "{text}");
            }
        }
    }

    #[test]
    fn stages_of_layers_come_before_those_of_the_model() {
        let recovery: Recovery = "halves+model[steps=3]+model".parse().unwrap();
        assert_eq!(recovery.layer_stage().unwrap().unit, Unit::Half);
        assert_eq!(recovery.model_stages().len(), 2);
        let recovery: Recovery = "model+blocks".parse().unwrap();
        assert!(recovery.layer_stage().is_none());
        assert_eq!(recovery.model_stages().len(), 2);
    }

    #[test]
    fn mistakes_are_named() {
        assert_eq!(
            why("block"),
            "there is no recovery stage `block`; did you mean `blocks`? choose one of blocks, halves, model"
        );
        assert_eq!(
            why("blocks[step=3]"),
            "blocks has no option `step`; its options are epochs, lr, schedule, batch, train, decay, regrow, every, precision"
        );
        assert_eq!(why("model[lr=-1]"), "lr=-1: expected a number greater than 0");
        assert_eq!(why("blocks[epochs=0]"), "epochs=0: expected a whole number of at least 1");
        assert_eq!(
            why("blocks[schedule=step]"),
            "schedule=step: expected linear or cosine or constant"
        );
        assert_eq!(why("model[regrow=2]"), "regrow=2: expected a fraction from 0 to 1");
        assert_eq!(
            why("model[regrow=0.1,train=norms]"),
            "train=norms: regrow moves weights, so these must be trained"
        );
        assert!(why("").starts_with("there is no recovery stage ``"));
    }
}
