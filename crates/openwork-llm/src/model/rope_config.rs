//! RoPE in config.json.
//!
//! transformers 4 writes `rope_theta`, `rope_scaling` and, for families with a local base,
//! `rope_local_base_freq`; transformers 5 writes `rope_parameters`, for those families one
//! per type of layer.

use super::config::ConfigError;
use super::config_reader::ConfigReader;
use super::family::Family;
use super::rope::{RopeParameters, Scaling};
use serde_json::{Map, Value, json};
use std::sync::LazyLock;

/// Gemma 4's parameters where config.json has none, as in transformers.
pub(super) fn gemma4() -> &'static Value {
    static DEFAULT: LazyLock<Value> = LazyLock::new(|| {
        json!({
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            "full_attention": {
                "rope_type": "proportional", "partial_rotary_factor": 0.25,
                "rope_theta": 1_000_000.0,
            },
        })
    });
    &DEFAULT
}

/// Those of gpt-oss.
pub(super) fn gpt_oss() -> &'static Value {
    static DEFAULT: LazyLock<Value> = LazyLock::new(|| {
        json!({
            "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "truncate": false, "original_max_position_embeddings": 4096,
        })
    });
    &DEFAULT
}

/// Those of Ministral 3.
pub(super) fn ministral3() -> &'static Value {
    static DEFAULT: LazyLock<Value> = LazyLock::new(|| {
        json!({
            "type": "yarn", "rope_theta": 1_000_000.0, "factor": 16.0,
            "original_max_position_embeddings": 16_384, "beta_fast": 32.0, "beta_slow": 1.0,
            "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1,
        })
    });
    &DEFAULT
}

/// The settings outside the RoPE keys that the rotation depends on.
pub struct HeadContext {
    /// Size of a head.
    pub head_dim: usize,
    /// Number of key-value heads.
    pub kv_heads: usize,
    /// Size of a head in layers that attend to all tokens.
    pub global_head_dim: usize,
    /// Maximum sequence length.
    pub max_positions: usize,
    /// Whether all of a head is rotated, and how.
    pub family: &'static Family,
}

/// The rotations of a model.
pub struct Ropes {
    /// Of global layers.
    pub global: RopeParameters,
    /// Of layers with a sliding window.
    pub sliding: RopeParameters,
    /// Factor and context of queries that grow with the logarithm of their position.
    pub query_scaling: Option<QueryScaling>,
}

/// A query at position `p` is multiplied by `1 + beta ln(1 + floor(p / original))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryScaling {
    /// Factor of the logarithm.
    pub beta: f64,
    /// Tokens of the original context.
    pub original: usize,
}

impl QueryScaling {
    /// The factor of a query at position `p`.
    pub fn factor(self, p: usize) -> f32 {
        (1.0 + self.beta * ((p / self.original) as f64).ln_1p()) as f32
    }
}

/// Keys of config.json outside the parameters, which apply to all of them.
struct Outer {
    theta: f64,
    partial: Option<f64>,
    original: Option<usize>,
}

impl<'a> ConfigReader<'a> {
    /// RoPE of the global and of the sliding layers.
    pub fn ropes(&mut self, context: &HeadContext) -> Result<Ropes, ConfigError> {
        let family = context.family;
        let outer = Outer {
            theta: self.number_or("rope_theta", family.rope_theta)?,
            partial: match family.rotation.partial {
                Some(default) => Some(self.number_or("partial_rotary_factor", default)?),
                None => None,
            },
            original: match family.rotation.partial {
                Some(_) => self.optional_size("original_max_position_embeddings")?,
                None => None,
            },
        };
        let new = self.value("rope_parameters");
        // An empty object has no effect.
        let old = self.value("rope_scaling").filter(|old| *old != &Value::Object(Map::new()));
        let new = match (new, old, family.default_rope) {
            (None, None, Some(default)) => Some(default()),
            (new, ..) => new,
        };
        let local = match family.local_rope {
            Some(local) => Some(self.number_or("rope_local_base_freq", local)?),
            None => None,
        };
        let with_theta = |theta: f64| Outer { theta, ..outer };
        let global_context = HeadContext { head_dim: context.global_head_dim, ..*context };
        let nested = new.filter(|new| new.get("full_attention").is_some()).zip(local);
        let [global, sliding] = match (nested, new, local) {
            (Some((new, local)), ..) => {
                let both = ["full_attention", "sliding_attention"];
                for key in new.as_object().into_iter().flat_map(Map::keys) {
                    if !both.contains(&key.as_str()) {
                        return Err(self.unsupported(
                            "rope_parameters",
                            &Value::from(key.as_str()),
                            "only full_attention and sliding_attention",
                        ));
                    }
                }
                let parse = |name: &str, theta: f64, context: &HeadContext| {
                    let key = format!("rope_parameters.{name}");
                    let missing = || ConfigError::Missing { key };
                    let json = new.get(name).ok_or_else(missing)?;
                    self.rope(Some(json), &with_theta(theta), context)
                };
                let global = parse(both[0], outer.theta, &global_context)?;
                [global, parse(both[1], local, context)?]
            }
            // Its layers do not share one.
            (None, ..) if family.differing_heads => {
                return Err(ConfigError::Missing { key: "rope_parameters".into() });
            }
            (None, parameters, local) => {
                let global = self.rope(parameters.or(old), &outer, context)?;
                let sliding = match local {
                    None => global.clone(),
                    Some(base) => self.rope(None, &with_theta(base), context)?,
                };
                [global, sliding]
            }
        };
        if let (Some(_), Some(old)) = (new, old)
            && self.rope(Some(old), &outer, context)? != global
        {
            return Err(ConfigError::Contradiction(
                "rope_parameters and rope_scaling differ; remove one of them".into(),
            ));
        }
        let query_scaling = match (family.rotation.scales_queries, new.or(old)) {
            (false, _) => None,
            (true, Some(json)) => {
                let mut keys = ConfigReader::new(json, self.family)?;
                Some(QueryScaling {
                    beta: keys.number("llama_4_scaling_beta")?,
                    original: keys.size("original_max_position_embeddings")?,
                })
            }
            (true, None) => return Err(ConfigError::Missing { key: "rope_parameters".into() }),
        };
        Ok(Ropes { global, sliding, query_scaling })
    }

    /// Parses a `rope_parameters` or `rope_scaling`; without one there is no scaling.
    fn rope(
        &self,
        json: Option<&'a Value>,
        outer: &Outer,
        context: &HeadContext,
    ) -> Result<RopeParameters, ConfigError> {
        let empty = Value::Object(Map::new());
        let mut keys = ConfigReader::new(json.unwrap_or(&empty), self.family)?;
        let theta = keys.number_or("rope_theta", outer.theta)?;
        let partial = match outer.partial {
            Some(default) => keys.number_or("partial_rotary_factor", default)?,
            None => 1.0,
        };
        let rotated = (context.head_dim as f64 * partial) as usize;
        if rotated < 2 || !rotated.is_multiple_of(2) || rotated > context.head_dim {
            return Err(ConfigError::Contradiction(format!(
                "partial_rotary_factor {partial} rotates {rotated} of the {} entries of a head",
                context.head_dim
            )));
        }
        let proportion = keys.map.get("partial_rotary_factor").and_then(Value::as_f64);
        let old_name = keys.value("type");
        let kind = keys.value("rope_type").or(old_name);
        let scaling = match kind.and_then(Value::as_str).unwrap_or("default") {
            "default" => Scaling::None,
            "proportional" => {
                keys.value("partial_rotary_factor");
                let share = proportion.unwrap_or(1.0);
                let planes = (share * context.head_dim as f64 / 2.0).floor();
                if !(0.0..=1.0).contains(&share) {
                    return Err(ConfigError::Contradiction(format!(
                        "partial_rotary_factor {share} is not between 0 and 1"
                    )));
                }
                let factor = keys.number_or("factor", 1.0)?;
                Scaling::Proportional { planes: planes as usize, factor }
            }
            "linear" => Scaling::Linear { factor: keys.number("factor")? },
            "llama3" => {
                let (low, high) =
                    (keys.number("low_freq_factor")?, keys.number("high_freq_factor")?);
                if low >= high {
                    return Err(ConfigError::Contradiction(format!(
                        "low_freq_factor {low} is not below high_freq_factor {high}"
                    )));
                }
                let factor = keys.number("factor")?;
                let original = keys.size("original_max_position_embeddings")?;
                Scaling::Llama3 { factor, low, high, original }
            }
            // Phi-3 uses these names.
            "longrope" | "su" => keys.long_rope(outer, context, rotated / 2)?,
            "yarn" if context.family.name == "phi3" => {
                keys.long_rope(outer, context, rotated / 2)?
            }
            "yarn" => keys.yarn(context)?,
            other => {
                return Err(self.unsupported(
                    "rope_type",
                    &Value::from(other),
                    "only default, linear, llama3, yarn, longrope and proportional",
                ));
            }
        };
        if context.family.rotation.has_sections {
            keys.value("mrope_section");
            keys.value("mrope_interleaved");
        }
        if context.family.rotation.scales_queries {
            keys.value("llama_4_scaling_beta");
            keys.value("original_max_position_embeddings");
            keys.value("max_position_embeddings");
        }
        // An unread key would change the computation.
        for (key, value) in keys.map {
            let neutral = value.is_null()
                || (key == "partial_rotary_factor" && value.as_f64() == Some(1.0))
                || (key == "factor" && value.as_f64() == Some(1.0));
            if !keys.used.contains(key.as_str()) && !neutral {
                return Err(self.unsupported(
                    key,
                    value,
                    "its other RoPE parameters are supported",
                ));
            }
        }
        let interleaved = context.family.rotation.interleaved;
        Ok(RopeParameters { theta, scaling, rotated, interleaved })
    }

    /// YaRN, with transformers' defaults.
    fn yarn(&mut self, context: &HeadContext) -> Result<Scaling, ConfigError> {
        let original = self.size("original_max_position_embeddings")?;
        let default = context.max_positions as f64 / original as f64;
        let factor = self.number_or("factor", default)?;
        let growth = |scale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 };
        let attention = self.optional_number("attention_factor")?;
        let scales = (self.optional_number("mscale")?, self.optional_number("mscale_all_dim")?);
        let attention = attention.unwrap_or_else(|| match scales {
            (Some(one), Some(all)) => growth(one) / growth(all),
            _ => growth(1.0),
        });
        let (fast, slow) = (self.number_or("beta_fast", 32.0)?, self.number_or("beta_slow", 1.0)?);
        let truncate = self.flag_or("truncate", true)?;
        Ok(Scaling::Yarn { factor, fast, slow, original, truncate, attention })
    }

    /// LongRoPE of `planes` planes, with transformers' defaults.
    fn long_rope(
        &mut self,
        outer: &Outer,
        context: &HeadContext,
        planes: usize,
    ) -> Result<Scaling, ConfigError> {
        let original = self.optional_size("original_max_position_embeddings")?;
        let original = original.or(outer.original).unwrap_or(context.max_positions);
        let default = context.max_positions as f64 / original as f64;
        let factor = self.number_or("factor", default)?;
        let attention = self.optional_number("attention_factor")?.unwrap_or_else(|| {
            if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / (original as f64).ln()).sqrt() }
        });
        let (short, long) =
            (self.divisors("short_factor", planes)?, self.divisors("long_factor", planes)?);
        Ok(Scaling::Long { short, long, original, attention })
    }

    /// A list of one positive number per plane.
    fn divisors(&mut self, key: &str, planes: usize) -> Result<Vec<f64>, ConfigError> {
        let value = self.value(key).ok_or_else(|| ConfigError::Missing { key: key.into() })?;
        let numbers: Option<Vec<f64>> =
            value.as_array().and_then(|list| list.iter().map(Value::as_f64).collect());
        let fits = |list: &Vec<f64>| {
            list.len() == planes && list.iter().all(|x| x.is_finite() && *x > 0.0)
        };
        numbers.filter(fits).ok_or_else(|| ConfigError::Kind {
            key: key.into(),
            found: value.to_string(),
            want: "a list of one positive number for each rotated pair of a head",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::Config;
    use super::super::family::FAMILIES;
    use serde_json::json;

    #[test]
    fn a_config_without_rope_has_the_default_of_its_family() {
        let families = || FAMILIES.iter().filter(|family| family.default_rope.is_some());
        assert_eq!(families().count(), 3);
        for family in families() {
            let mut json = json!({
                "architectures": family.architectures, "hidden_size": 64, "intermediate_size": 24,
                "num_hidden_layers": 3, "num_attention_heads": 8, "vocab_size": 100,
            });
            let absent = Config::new(&json).expect(family.name);
            json["rope_scaling"] = json!(null);
            let null = Config::new(&json).expect(family.name);
            json["rope_parameters"] = family.default_rope.expect("a default")().clone();
            let given = Config::new(&json).expect(family.name);
            for config in [&absent, &null] {
                assert_eq!(config.attention, given.attention, "{}", family.name);
                assert_eq!(config.query_scaling, given.query_scaling, "{}", family.name);
            }
            json["rope_parameters"] = json!({"rope_type": "linear", "factor": 2.0});
            let other = Config::new(&json).map(|config| config.attention);
            assert!(other.ok() != Some(given.attention), "{}", family.name);
        }
    }
}
