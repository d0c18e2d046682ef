//! RoPE scaling in GGUF: keys of the metadata, and tensors of factors.

use super::config::{ConfigBuilder, share};
use super::metadata::shortest;
use crate::checkpoint::error::Fault;
use crate::checkpoint::tensor::Tensor;
use crate::model::Family;
use serde_json::{Value, json};

/// Tensors of RoPE factors, which Hugging Face keeps in the config.
pub(super) const FREQUENCIES: &str = "rope_freqs.weight";
pub(super) const LONG: &str = "rope_factors_long.weight";
pub(super) const SHORT: &str = "rope_factors_short.weight";

/// YaRN's defaults.
pub(super) const BETA_FAST: f64 = 32.0;
pub(super) const BETA_SLOW: f64 = 1.0;

/// The RoPE factors of a file.
#[derive(Default)]
pub(super) struct Factors<'a> {
    pub frequencies: Option<Tensor<'a>>,
    pub long: Option<Tensor<'a>>,
    pub short: Option<Tensor<'a>>,
}

/// The factor of YaRN's cosines and sines for a context `factor` times as long.
pub(super) fn growth(factor: f64, scale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 }
}

/// That of LongRoPE.
pub(super) fn long_growth(factor: f64, original: u32) -> f64 {
    if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / f64::from(original).ln()).sqrt() }
}

/// Divides the frequencies of planes that are not rotated.
const STOPPED: f32 = 1e30;

/// The factors of which the first `planes` are rotated.
pub(super) fn proportional_factors(planes: usize, all: usize) -> Vec<f32> {
    (0..all).map(|plane| if plane < planes { 1.0 } else { STOPPED }).collect()
}

/// Whether the ends of YaRN's ramp are rounded. llama.cpp always does and has no key for it;
/// the models of gpt-oss were trained without.
pub(super) fn rounds_ramp(family: &Family) -> bool {
    family.default_rope.is_none_or(|rope| rope()["truncate"] != false)
}

impl ConfigBuilder<'_> {
    /// `rope_scaling` of heads of which `rotated` entries are rotated.
    pub fn rope_scaling(
        &self,
        theta: f64,
        rotated: u32,
        context: u32,
        factors: &Factors<'_>,
    ) -> Result<Value, Fault> {
        let kind = self.text("rope.scaling.type")?;
        // The second name was used in 2023.
        let factor = self.first_float(&["rope.scaling.factor", "rope.scale_linear"])?;
        let factor = factor.filter(|&factor| factor != 0.0 && factor != 1.0);
        let scaling = match (kind.as_deref(), factor) {
            (Some("longrope"), _) => self.long_rope(rotated, context, factors)?,
            (None | Some("none"), None) if factors.long.is_some() || factors.short.is_some() => {
                self.long_rope(rotated, context, factors)?
            }
            (Some("none"), _) | (None | Some("linear"), None) => Value::Null,
            // Without a type, ggml treats a factor as linear.
            (None | Some("linear"), Some(factor)) => {
                json!({"rope_type": "linear", "factor": factor})
            }
            (Some("yarn"), factor) => self.yarn(factor.unwrap_or(1.0), context)?,
            (Some(other), _) => {
                let why = format!("is {other:?}, which is not supported");
                return Err(self.refuse("rope.scaling.type", why));
            }
        };
        let Some(frequencies) = factors.frequencies else { return Ok(scaling) };
        let refuse = |why: &str| Fault::Tensor {
            tensor: frequencies.name().to_string(),
            why: format!("{why}, which is not supported"),
        };
        if !scaling.is_null() {
            return Err(refuse("contains RoPE factors in addition to those of the metadata"));
        }
        llama3_scaling(theta, rotated, &frequencies.to_f32())
            .ok_or_else(|| refuse("contains RoPE factors other than Llama 3's"))
    }

    /// Proportional RoPE of heads of this size, of which the file has a factor for each plane:
    /// 1 for the first, and one that stops the rotation for the others.
    pub fn proportional(
        &self,
        dim: u32,
        context: u32,
        factors: &Factors<'_>,
    ) -> Result<Value, Fault> {
        let scaling = self.rope_scaling(0.0, dim, context, &Factors::default())?;
        if let Some(kind) = scaling["rope_type"].as_str() {
            let why = format!("is {kind:?}, which is not supported");
            return Err(self.refuse("rope.scaling.type", why));
        }
        let Some(tensor) = factors.frequencies else {
            return Err(Fault::Shape(format!("the file has no tensor {FREQUENCIES:?}")));
        };
        let found = tensor.to_f32();
        let planes = found.iter().take_while(|&&factor| factor == 1.0).count();
        if found != proportional_factors(planes, dim as usize / 2) {
            let why =
                "contains RoPE factors other than Gemma 4's, which is not supported".to_string();
            return Err(Fault::Tensor { tensor: tensor.name().to_string(), why });
        }
        let share = share(2 * planes as u32, dim);
        Ok(json!({"rope_type": "proportional", "partial_rotary_factor": share}))
    }

    /// YaRN. The factor of cosines and sines is that of transformers, times `attn_factor`.
    fn yarn(&self, factor: f64, context: u32) -> Result<Value, Fault> {
        if let Some(share) = self.float("rope.scaling.yarn_ext_factor")?
            && share != 1.0
        {
            let why = format!("is {share}, which is not supported");
            return Err(self.refuse("rope.scaling.yarn_ext_factor", why));
        }
        let original = self.number("rope.scaling.original_context_length")?;
        let mut scaling = json!({
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original.unwrap_or(context),
            "beta_fast": self.float("rope.scaling.yarn_beta_fast")?.unwrap_or(BETA_FAST),
            "beta_slow": self.float("rope.scaling.yarn_beta_slow")?.unwrap_or(BETA_SLOW),
        });
        if !rounds_ramp(self.family) {
            scaling["truncate"] = json!(false);
        }
        let all = self.float("rope.scaling.yarn_log_multiplier")?.filter(|&all| all != 0.0);
        let own = self.float("rope.scaling.yarn_attn_factor")?;
        let times = self.float("rope.scaling.attn_factor")?.unwrap_or(1.0);
        if own.is_some() || times != 1.0 {
            let scaled = all.map_or(1.0, |all| growth(factor, all));
            let own = own.unwrap_or(growth(factor, 1.0) / scaled);
            scaling["attention_factor"] = json!(own * times);
        } else if let Some(all) = all {
            scaling["mscale"] = json!(1.0);
            scaling["mscale_all_dim"] = json!(all);
        }
        Ok(scaling)
    }

    /// LongRoPE, whose divisors are tensors.
    fn long_rope(&self, rotated: u32, context: u32, factors: &Factors<'_>) -> Result<Value, Fault> {
        /// The factor was rounded to f32.
        const TOLERANCE: f64 = 1e-6;
        let list = |tensor: Option<Tensor<'_>>, name: &str| -> Result<Value, Fault> {
            let Some(tensor) = tensor else {
                return Err(Fault::Shape(format!("the file has no tensor {name:?}")));
            };
            if tensor.shape() != [rotated as usize / 2] || !tensor.dtype().holds_weights() {
                let (tensor, found) = (name.to_string(), tensor.shape().to_vec());
                return Err(Fault::OtherShape { tensor, found, asked: vec![rotated as usize / 2] });
            }
            Ok(tensor.to_f32().into_iter().map(|factor| json!(shortest(factor))).collect())
        };
        let original = self.number("rope.scaling.original_context_length")?.unwrap_or(context);
        let mut scaling = json!({
            "rope_type": "longrope",
            "short_factor": list(factors.short, SHORT)?,
            "long_factor": list(factors.long, LONG)?,
            "original_max_position_embeddings": original,
        });
        let attention = self.float("rope.scaling.attn_factor")?.unwrap_or(1.0);
        let default = long_growth(f64::from(context) / f64::from(original.max(1)), original);
        // Also if the default is not a number.
        let usual = (attention - default).abs() <= TOLERANCE * default;
        if !usual {
            scaling["attention_factor"] = json!(attention);
        }
        Ok(scaling)
    }
}

/// Llama 3's RoPE scaling, if it gives these factors. GGUF stores the factor of
/// each frequency instead of the rule:
///
/// ```text
/// wavelength_i = 2 pi theta^(2i/d)
/// f_i = 1            if wavelength_i < original / high
///       factor       if wavelength_i > original / low
///       1 / ((1 - s) / factor + s),  s = (original / wavelength_i - low) / (high - low)   else
/// ```
///
/// with low = 1, high = 4, original = 8192 in all of Llama 3.1, 3.2 and 3.3.
pub(super) fn llama3_scaling(theta: f64, head_dim: u32, factors: &[f32]) -> Option<Value> {
    const LOW: f64 = 1.0;
    const HIGH: f64 = 4.0;
    const ORIGINAL: f64 = 8192.0;
    /// The factors were rounded to f32 more than once.
    const TOLERANCE: f64 = 1e-4;
    let factor = f64::from(factors.iter().copied().reduce(f32::max)?);
    let expected = |i: usize| {
        let wavelength =
            2.0 * std::f64::consts::PI * theta.powf(2.0 * i as f64 / f64::from(head_dim));
        if wavelength < ORIGINAL / HIGH {
            1.0
        } else if wavelength > ORIGINAL / LOW {
            factor
        } else {
            let s = (ORIGINAL / wavelength - LOW) / (HIGH - LOW);
            1.0 / ((1.0 - s) / factor + s)
        }
    };
    let same = |(i, &found): (usize, &f32)| {
        (f64::from(found) - expected(i)).abs() <= TOLERANCE * expected(i)
    };
    let all = factors.len() == head_dim as usize / 2 && factors.iter().enumerate().all(same);
    all.then(|| {
        json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": LOW,
            "high_freq_factor": HIGH,
            "original_max_position_embeddings": ORIGINAL as u64,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama_3_2_is_known_by_its_factors() {
        // What transformers makes of Llama 3.2's config: theta 500,000, heads of 64, factor 32.
        let mut factors = vec![1.0; 32];
        factors[15..18].copy_from_slice(&[1.651329, 3.292263, 9.66673]);
        factors[18..].fill(32.0);
        let scaling = llama3_scaling(500_000.0, 64, &factors).unwrap();
        assert_eq!(scaling["rope_type"], "llama3");
        assert_eq!(scaling["factor"], 32.0);
        assert_eq!(scaling["original_max_position_embeddings"], 8192);
        assert!(llama3_scaling(10_000.0, 64, &factors).is_none());
        assert!(llama3_scaling(500_000.0, 128, &factors).is_none());
        factors[16] = 3.3;
        assert!(llama3_scaling(500_000.0, 64, &factors).is_none());
        assert!(llama3_scaling(500_000.0, 64, &[]).is_none());
        assert!(llama3_scaling(500_000.0, 64, &[f32::NAN; 32]).is_none());
    }
}
