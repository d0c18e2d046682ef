//! Keys that say which kind each layer is: layers that are not part of the model, sliding
//! windows, gated delta nets.

use super::config::ConfigBuilder;
use super::metadata::MetadataValue;
use crate::checkpoint::error::Fault;
use crate::model::{DeltaNetSizes, SlidingWindow};
use serde_json::{Value, json};

/// Gemma 2's default window.
const GEMMA2_WINDOW: u32 = 4096;
/// Which layers slide: flags, or the interval of those that do not.
const PATTERN: &str = "attention.sliding_window_pattern";
/// Every fourth layer of Qwen3.5 has attention by default.
const ATTENTION_INTERVAL: u32 = 4;

impl ConfigBuilder<'_> {
    /// The number of layers. Files of Qwen3.5 may have more, which predict further tokens.
    pub fn layers(&self) -> Result<u32, Fault> {
        const KEY: &str = "nextn_predict_layers";
        let all = self.needed("block_count")?;
        let further = match self.family.delta_nets {
            true => self.number(KEY)?.unwrap_or(0),
            false => 0,
        };
        if further >= all {
            return Err(self.refuse(KEY, format!("is {further}, but block_count is {all}")));
        }
        Ok(all - further)
    }

    /// A flag for each layer from a list, which may have entries for further layers.
    fn layer_flags(&self, key: &str, layers: u32) -> Result<Option<Vec<bool>>, Fault> {
        let full = self.key(key);
        let Some(MetadataValue::List { .. }) = self.metadata.get(&full) else { return Ok(None) };
        let mut flags = self.metadata.flags(&full, self.bytes)?.unwrap_or_default();
        if ![layers, self.needed("block_count")?].contains(&(flags.len() as u32)) {
            let why = format!("has {} entries for {layers} layers", flags.len());
            return Err(self.refuse(key, why));
        }
        flags.truncate(layers as usize);
        Ok(Some(flags))
    }

    /// The sizes of gated delta nets, if the family has them.
    pub fn delta_net(&self) -> Result<Option<DeltaNetSizes>, Fault> {
        if !self.family.delta_nets {
            return Ok(None);
        }
        let [key_heads, value_heads] = ["ssm.group_count", "ssm.time_step_rank"];
        let size = |key: &str| Ok(self.needed(key)? as usize);
        let width = size("ssm.inner_size")?;
        let sizes = DeltaNetSizes {
            key_heads: size(key_heads)?,
            value_heads: size(value_heads)?,
            key_dim: size("ssm.state_size")?,
            value_dim: width / size(value_heads)?,
            kernel: size("ssm.conv_kernel")?,
        };
        if sizes.value_width() != width || width == 0 {
            let why =
                format!("is {width}, not a multiple of {value_heads} = {}", sizes.value_heads);
            return Err(self.refuse("ssm.inner_size", why));
        }
        if !sizes.value_heads.is_multiple_of(sizes.key_heads) {
            let DeltaNetSizes { key_heads: keys, value_heads: values, .. } = sizes;
            let why = format!("is {keys}, which does not divide {value_heads} = {values}");
            return Err(self.refuse(key_heads, why));
        }
        Ok(Some(sizes))
    }

    /// Sets the sizes of gated delta nets, and which layers have one instead of attention.
    pub fn set_delta_net(
        &self,
        layers: u32,
        set: &mut impl FnMut(&str, Value) -> Option<Value>,
    ) -> Result<(), Fault> {
        const EVERY: &str = "full_attention_interval";
        let Some(sizes) = self.delta_net()? else { return Ok(()) };
        set("linear_num_key_heads", json!(sizes.key_heads));
        set("linear_num_value_heads", json!(sizes.value_heads));
        set("linear_key_head_dim", json!(sizes.key_dim));
        set("linear_value_head_dim", json!(sizes.value_dim));
        set("linear_conv_kernel_dim", json!(sizes.kernel));
        let recurrent = match self.layer_flags("attention.recurrent_layers", layers)? {
            Some(flags) => flags,
            None => match self.number(EVERY)?.unwrap_or(ATTENTION_INTERVAL) {
                0 => return Err(self.refuse(EVERY, "is 0".to_string())),
                every => (1..=layers).map(|layer| !layer.is_multiple_of(every)).collect(),
            },
        };
        let name = |recurrent| if recurrent { "linear_attention" } else { "full_attention" };
        set("layer_types", recurrent.into_iter().map(name).collect());
        Ok(())
    }

    /// Which layers have a sliding window.
    pub fn set_window(
        &self,
        layers: u32,
        set: &mut impl FnMut(&str, Value) -> Option<Value>,
    ) -> Result<(), Fault> {
        const KEY: &str = "attention.sliding_window";
        let window = self.number(KEY)?.filter(|&window| window > 0);
        match (self.family.window, window) {
            (SlidingWindow::Pattern(_), window) => {
                let default = (self.family.name == "gemma2").then_some(GEMMA2_WINDOW);
                let Some(window) = window.or(default) else { return self.needed(KEY).map(drop) };
                set("sliding_window", json!(window));
                let (key, value) = self.sliding(layers)?;
                set(key, value);
            }
            (SlidingWindow::AllIfSet { .. }, window) => drop(set("sliding_window", json!(window))),
            (_, Some(window)) => drop(set("sliding_window", json!(window))),
            (_, None) => {}
        }
        Ok(())
    }

    /// Which layers use sliding attention, as a key of `config.json`: all but every n-th, or
    /// a list with one entry per layer.
    fn sliding(&self, layers: u32) -> Result<(&'static str, Value), Fault> {
        // The key is Gemma 3's only.
        if self.family.name == "gemma3" && self.layer_flags(PATTERN, layers)?.is_none() {
            return Ok(("sliding_window_pattern", json!(self.interval()?)));
        }
        let name = |slides: bool| if slides { "sliding_attention" } else { "full_attention" };
        Ok(("layer_types", self.slides(layers)?.into_iter().map(name).collect()))
    }

    /// Whether each layer uses sliding attention.
    pub fn slides(&self, layers: u32) -> Result<Vec<bool>, Fault> {
        if let Some(flags) = self.layer_flags(PATTERN, layers)? {
            return Ok(flags);
        }
        let every = self.interval()?;
        Ok((1..=layers).map(|layer| !layer.is_multiple_of(every)).collect())
    }

    /// The interval of layers without sliding attention.
    fn interval(&self) -> Result<u32, Fault> {
        let default = match self.family.window {
            SlidingWindow::Pattern(every) => every as u32,
            _ => 1,
        };
        match self.number(PATTERN)?.unwrap_or(default) {
            0 => Err(self.refuse(PATTERN, "is 0".to_string())),
            every => Ok(every),
        }
    }
}
