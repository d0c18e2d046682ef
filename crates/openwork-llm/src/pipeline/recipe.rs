//! Recipes: TOML files that assign patterns and methods to tensors.
//!
//! ```toml
//! spec = "2:4"                       # for every linear that no rule matches
//! method = "sparsegpt+refit"
//!
//! [budget]                           # optional: densities by sensitivity
//! density = 0.5
//! spread = 0.15
//!
//! [[rule]]                           # later rules win
//! match = "layers.(0|1|2).*down_proj"
//! spec = "rowwise(60%)"
//!
//! [[rule]]
//! layers = "28-29"                   # first and last, both included
//! dense = true
//!
//! [[rule]]                           # tensors of a layer, pruned together
//! spec = "mlp keep 75%"
//! ```
//!
//! Passes are recipes that run one after the other, each on the result of the previous one:
//!
//! ```toml
//! method = "s-obs"                   # where a pass gives none
//!
//! [[pass]]
//! spec = "layers keep 28"
//!
//! [[pass]]
//! spec = "mlp keep 75%"
//! remove = true                      # remove the channels from the tensors
//!
//! [[pass]]
//! spec = "2:4"
//! ```

use super::options::regular_expression;
use crate::model::LinearInfo;
use regex::Regex;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Patterns and methods by tensor; see the module.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// The spec of every linear that no rule matches; without it these stay dense.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<String>,
    /// The method where a rule gives none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Remove pruned heads and channels from the tensors.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub remove: bool,
    /// Densities by sensitivity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// Exceptions; if several match the same tensor, the last one wins.
    #[serde(default, rename = "rule", skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
    /// Recipes to run one after the other, instead of a spec, a budget and rules.
    #[serde(default, rename = "pass", skip_serializing_if = "Vec::is_empty")]
    pub passes: Vec<Recipe>,
}

/// A mean density, distributed over the layers by sensitivity.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// The mean over all weights with the recipe's own spec.
    pub density: f64,
    /// How far a layer's density may be from it.
    #[serde(default = "default_spread")]
    pub spread: f64,
}

fn default_spread() -> f64 {
    0.15
}

/// An exception for some tensors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// A regular expression that must match somewhere in the tensor's name; all if not given.
    #[serde(default, rename = "match", skip_serializing_if = "Option::is_none")]
    pub matches: Option<String>,
    /// Layers: `3`, `0-5`, or a list `0-2,9`; all if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<String>,
    /// Another spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<String>,
    /// Another method.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The same spec with another share of blocks kept in each scope.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub density: Option<f64>,
    /// Leave these tensors as they are.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dense: bool,
}

/// What is wrong with a recipe.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RecipeError(pub(super) String);

impl Recipe {
    /// One spec and one method for all linears.
    pub fn new(spec: &str, method: &str) -> Self {
        Self { spec: Some(spec.to_string()), method: Some(method.to_string()), ..Self::default() }
    }

    /// Reads the text of a recipe.
    ///
    /// ```
    /// use openwork_llm::pipeline::Recipe;
    /// let recipe = Recipe::parse("spec = '2:4'\n[[rule]]\nmatch = 'down'\ndense = true").unwrap();
    /// assert!(recipe.rules[0].dense);
    /// assert!(Recipe::parse("speck = '2:4'").unwrap_err().to_string().contains("speck"));
    /// ```
    pub fn parse(text: &str) -> Result<Self, RecipeError> {
        let recipe: Self = toml::from_str(text).map_err(|error| {
            RecipeError(format!("the recipe is not valid: {}", error.to_string().trim_end()))
        })?;
        recipe.check()?;
        Ok(recipe)
    }

    /// Checks that it does not contradict itself.
    pub fn check(&self) -> Result<(), RecipeError> {
        if let Some(budget) = self.budget {
            let Budget { density, spread } = budget;
            if !(density > 0.0 && density < 1.0) {
                return Err(RecipeError(format!(
                    "[budget] density is {density}; give a share between 0 and 1"
                )));
            }
            if !(0.0..1.0).contains(&spread) {
                return Err(RecipeError(format!(
                    "[budget] spread is {spread}; give a number from 0 to 1"
                )));
            }
        }
        for (i, rule) in self.rules.iter().enumerate() {
            rule.check().map_err(|why| RecipeError(format!("[[rule]] {}: {why}", i + 1)))?;
        }
        let own =
            self.spec.is_some() || self.budget.is_some() || self.remove || !self.rules.is_empty();
        if !self.passes.is_empty() && own {
            return Err(RecipeError(
                "the recipe has passes; spec, remove, budget and rules belong to each [[pass]]"
                    .to_string(),
            ));
        }
        for (i, pass) in self.passes.iter().enumerate() {
            let wrong = |why: String| RecipeError(format!("[[pass]] {}: {why}", i + 1));
            if !pass.passes.is_empty() {
                return Err(wrong("a pass has no passes".to_string()));
            }
            pass.check().map_err(|error| wrong(error.0))?;
        }
        Ok(())
    }

    /// Its passes, each with its own method or the recipe's; the recipe itself if
    /// it has none.
    pub fn each_pass(&self) -> Vec<Recipe> {
        match self.passes.as_slice() {
            [] => vec![self.clone()],
            passes => passes
                .iter()
                .map(|pass| Recipe {
                    method: pass.method.clone().or(self.method.clone()),
                    ..pass.clone()
                })
                .collect(),
        }
    }

    /// The text of a recipe.
    pub fn to_toml(&self) -> String {
        // A recipe holds only tables of plain values, which can always be written.
        toml::to_string(self).unwrap_or_default()
    }
}

impl Rule {
    fn check(&self) -> Result<(), String> {
        self.selector()?;
        if let Some(density) = self.density
            && !(density > 0.0 && density <= 1.0)
        {
            return Err(format!("density is {density}; give a share above 0, up to 1"));
        }
        let says = [self.spec.is_some(), self.method.is_some(), self.density.is_some(), self.dense];
        if !says.contains(&true) {
            return Err("it changes nothing; give spec, method, density or dense".to_string());
        }
        if self.dense && says[..3].contains(&true) {
            return Err("dense tensors have no spec, method or density".to_string());
        }
        Ok(())
    }

    /// The tensors that it applies to.
    pub(super) fn selector(&self) -> Result<RuleSelector, String> {
        let layers = self.layers.as_deref().map(layer_ranges).transpose()?;
        let wrong = |text: &str, why: String| format!("match = {text:?}: {why}");
        let name = self
            .matches
            .as_deref()
            .map(|text| regular_expression(text).map_err(|why| wrong(text, why)));
        let name = name.transpose()?;
        Ok(RuleSelector { name, layers, members: None })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.matches.as_ref().map(|text| format!("match = {text:?}"));
        let layers = self.layers.as_ref().map(|text| format!("layers = {text:?}"));
        let parts: Vec<String> = name.into_iter().chain(layers).collect();
        f.write_str(&if parts.is_empty() { "all tensors".to_string() } else { parts.join(", ") })
    }
}

/// The tensors that a rule applies to.
#[derive(Clone, Debug)]
pub(super) struct RuleSelector {
    name: Option<Regex>,
    layers: Option<Vec<(usize, usize)>>,
    /// Which of a layer's linears, by the names of a coupling; all if not given.
    members: Option<Vec<String>>,
}

impl RuleSelector {
    /// The same with a pattern for only some of a layer's linears.
    pub fn limited_to(&self, members: Option<Vec<String>>) -> Self {
        Self { members, ..self.clone() }
    }

    /// Whether its pattern applies to this one of a layer's linears.
    pub fn prunes(&self, linear: &LinearInfo) -> bool {
        let called = |members: &Vec<String>| members.iter().any(|name| linear.is_called(name));
        self.members.as_ref().is_none_or(called)
    }

    /// Whether it matches a tensor of a layer.
    pub fn matches(&self, layer: usize, name: &str) -> bool {
        let in_layers = |ranges: &Vec<(usize, usize)>| {
            ranges.iter().any(|&(first, last)| (first..=last).contains(&layer))
        };
        self.layers.as_ref().is_none_or(in_layers)
            && self.name.as_ref().is_none_or(|name_is| name_is.is_match(name))
    }

    /// The first layer that it names and a model of `layers` layers does not have.
    pub fn beyond(&self, layers: usize) -> Option<usize> {
        let ranges = self.layers.as_ref()?;
        ranges.iter().find(|(_, last)| *last >= layers).map(|(_, last)| *last)
    }
}

/// `3`, `0-5` or `0-2,9` as first and last layers.
fn layer_ranges(text: &str) -> Result<Vec<(usize, usize)>, String> {
    let wrong = || format!("layers = {text:?}: write 3, 0-5 or 0-2,9");
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<usize>().map_err(|_| wrong());
        let (first, last) = (number(first)?, number(last)?);
        if first <= last { Ok((first, last)) } else { Err(wrong()) }
    };
    text.split(',').map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recipe_reads_back_what_it_writes() {
        let text = "spec = \"2:4\"\nmethod = \"s-obs\"\n\n[budget]\ndensity = 0.5\nspread = 0.1\n\n\
                    [[rule]]\nmatch = \"down\"\nlayers = \"0-2,9\"\ndensity = 0.75\n";
        let recipe = Recipe::parse(text).unwrap();
        assert_eq!(Recipe::parse(&recipe.to_toml()).unwrap(), recipe);
        let selector = recipe.rules[0].selector().unwrap();
        assert!(selector.matches(9, "layers.9.mlp.down_proj"));
        assert!(!selector.matches(3, "down") && !selector.matches(2, "up"));
        assert_eq!((selector.beyond(10), selector.beyond(9)), (None, Some(9)));
    }

    proptest::proptest! {
        /// No text makes it panic, and what is read is read back.
        #[test]
        fn any_text_is_read_or_refused(
            text in "(spec|method|density|match|layers|dense|rule|budget|[=\\[\\]'\"0-9.,:\\-\n a-z(|*]){0,60}",
        ) {
            if let Ok(recipe) = Recipe::parse(&text) {
                proptest::prop_assert_eq!(Recipe::parse(&recipe.to_toml()), Ok(recipe));
            }
        }
    }

    #[test]
    fn mistakes_are_named() {
        let why = |text: &str| Recipe::parse(text).unwrap_err().to_string();
        assert!(why("spec = 3").contains("invalid type"));
        assert!(
            why("[[rule]]\nmatch='('\ndense=true")
                .contains("[[rule]] 1: match = \"(\": not a valid")
        );
        assert_eq!(
            why("[[rule]]\nmatch='x'"),
            "[[rule]] 1: it changes nothing; give spec, method, density or dense"
        );
        assert!(why("[[rule]]\nlayers='5-2'\ndense=true").contains("write 3, 0-5 or 0-2,9"));
        assert!(why("[[rule]]\ndense=true\nspec='2:4'").contains("dense tensors have no spec"));
        assert!(why("[budget]\ndensity = 1.5").contains("between 0 and 1"));
        assert!(why("[[rule]]\ndensity = 0.0").contains("above 0"));
        assert!(why("spec='2:4'\n[[pass]]\nspec='2:4'").contains("belong to each [[pass]]"));
        assert!(why("[[pass]]\n[[pass.pass]]\nspec='2:4'").contains("a pass has no passes"));
    }
}
