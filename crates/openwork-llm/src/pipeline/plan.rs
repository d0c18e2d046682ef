//! What will be done to every tensor: a recipe, bound to a model's shapes. All
//! of a user's mistakes end here, before anything runs.

use super::PipelineError;
use super::recipe::{Recipe, Rule, expression};
use super::structure;
use crate::model::{Config, LINEARS, Layer, Site};
use openwork::prune::Method;
use openwork::spec::{Band, bands};
use openwork::{Pattern, Spec, SpecError};
use regex::Regex;
use std::collections::{BTreeMap, BTreeSet};

/// The method where none is given.
pub const METHOD: &str = openwork::prune::DEFAULT_METHOD;

/// Rows of a band, or a few more: enough for products at full speed, and few
/// enough for many workers.
const BAND_ROWS: usize = 192;

/// The fewest blocks in a scope for which another density means another keep.
const VARIABLE: usize = 16;

/// What will be done to every linear.
#[derive(Clone, Debug)]
pub struct Plan {
    /// One for each layer.
    pub layers: Vec<LayerPlan>,
    /// What the user should know: rules that win over others.
    pub notes: Vec<String>,
    /// The recipe that it was made of.
    pub recipe: Recipe,
}

/// What will be done to one layer.
#[derive(Clone, Debug)]
pub struct LayerPlan {
    /// Tensors that are pruned together.
    pub tasks: Vec<TaskPlan>,
    /// Sites whose inputs are captured together, in order; what a capture needs
    /// is pruned before the next one.
    pub captures: Vec<Vec<Site>>,
}

/// Tensors that are pruned together: one, or the members of a coupling.
#[derive(Clone, Debug)]
pub struct TaskPlan {
    /// Which of the layer's linears, in the spec's order.
    pub linears: Vec<usize>,
    /// The pattern, with the keep in force.
    pub pattern: Pattern,
    /// The spec as the user wrote it: `mlp keep 75%`.
    pub written: String,
    /// The pattern on these shapes.
    pub spec: Spec,
    /// The method, as its text.
    pub method: String,
}

/// Which tensors may be pruned at all.
#[derive(Clone, Debug, Default)]
pub struct TensorFilter {
    include: Option<Regex>,
    exclude: Option<Regex>,
}

impl TensorFilter {
    /// Tensors whose names match `include`, if given, and not `exclude`.
    pub fn new(include: Option<&str>, exclude: Option<&str>) -> Result<Self, PipelineError> {
        let read = |flag: &str, text: Option<&str>| {
            text.map(expression)
                .transpose()
                .map_err(|why| PipelineError::Plan(format!("{flag} {why}")))
        };
        Ok(Self { include: read("--include", include)?, exclude: read("--exclude", exclude)? })
    }

    fn takes(&self, name: &str) -> bool {
        self.include.as_ref().is_none_or(|include| include.is_match(name))
            && !self.exclude.as_ref().is_some_and(|exclude| exclude.is_match(name))
    }
}

impl TaskPlan {
    /// Binds a pattern to some of the linears of a layer, in its order.
    pub fn new(
        linears: Vec<usize>,
        pattern: Pattern,
        method: &str,
        config: &Config,
    ) -> Result<Self, PipelineError> {
        let wrong = |why: String| PipelineError::Plan(format!("`{pattern}`: {why}"));
        let spec = bound(&linears, &pattern, &Layer::linear_shapes(config));
        let spec = spec.map_err(|error| wrong(error.to_string()))?;
        method.parse::<Method>().map_err(|error| wrong(error.to_string()))?;
        let written = pattern.to_string();
        Ok(Self { linears, spec, pattern, written, method: method.to_string() })
    }

    /// The method, ready to prune.
    ///
    /// # Panics
    ///
    /// Never: the text was read when the plan was made.
    pub fn recipe(&self) -> Method {
        self.method.parse().expect("the plan holds methods that were read")
    }

    /// Rows that are pruned apart, from top to bottom; one band with all of them
    /// where the pattern or the method needs them together. Part of the result:
    /// a band is pruned as if it were alone.
    pub fn bands(&self) -> Vec<Band> {
        let cut = || bands(&self.pattern, &self.spec, BAND_ROWS);
        self.recipe().by_rows().then(cut).flatten().unwrap_or_else(|| {
            let rows = 0..self.spec.tensors()[0].matrix().0;
            vec![Band { rows, spec: self.spec.clone() }]
        })
    }

    /// The full names of its tensors in layer `index`, for messages.
    pub fn names(&self, index: usize) -> String {
        let names: Vec<_> = self.linears.iter().map(|&i| Layer::weight_name(index, i)).collect();
        names.join(", ")
    }

    /// The sites whose inputs it needs.
    pub fn sites(&self) -> BTreeSet<Site> {
        self.linears.iter().map(|&i| LINEARS[i].1).collect()
    }

    /// The same task with the share `density` of the blocks of a scope kept.
    pub fn with_density(&self, density: f64) -> Self {
        let blocks = self.spec.blocks_per_scope();
        let keep = ((density * blocks as f64).round() as usize).clamp(1, blocks);
        let pattern = self.pattern.keeping(keep);
        let tensors: Vec<(&str, &[usize])> =
            self.spec.tensors().iter().map(|tensor| (tensor.name(), tensor.dims())).collect();
        // A scope has that many blocks, so it can keep them.
        let spec = pattern.bind_all(&tensors).unwrap_or_else(|_| self.spec.with_keep(keep));
        Self { pattern, spec, ..self.clone() }
    }

    /// Whether another density would mean another number of blocks.
    pub fn is_variable(&self) -> bool {
        self.spec.blocks_per_scope() >= VARIABLE
    }

    /// Weights in its tensors.
    pub fn weights(&self) -> usize {
        self.spec.tensors().iter().map(|tensor| tensor.size()).sum()
    }
}

/// What was said of one tensor so far.
#[derive(Clone, Default, PartialEq)]
struct Override {
    spec: Option<String>,
    method: Option<String>,
    density: Option<f64>,
    dense: bool,
    /// The last rule that said something, from 1.
    rule: Option<usize>,
}

impl Plan {
    /// Binds a recipe to a model.
    pub fn new(
        recipe: &Recipe,
        filter: &TensorFilter,
        config: &Config,
        sequential: bool,
    ) -> Result<Self, PipelineError> {
        if !recipe.passes.is_empty() {
            return Err(PipelineError::Plan(
                "the recipe has passes; each of them is a plan of its own".to_string(),
            ));
        }
        let mut builder = PlanBuilder {
            config,
            filter,
            wrong: BTreeMap::new(),
            wins: BTreeMap::new(),
            written: BTreeMap::new(),
        };
        let layers = builder.layers(recipe)?;
        if !builder.wrong.is_empty() {
            let lines: Vec<String> = builder
                .wrong
                .iter()
                .map(|(why, names)| format!("  {}: {why}", few(names)))
                .collect();
            return Err(PipelineError::Plan(format!(
                "the plan does not fit the model; exclude these tensors or give them a rule:\n{}",
                lines.join("\n")
            )));
        }
        if layers.iter().all(|tasks| tasks.is_empty()) {
            return Err(PipelineError::Plan(
                "no tensor would be pruned; give --spec, or look at --include, --exclude and the rules"
                    .to_string(),
            ));
        }
        let variable = |tasks: &Vec<TaskPlan>| tasks.iter().any(TaskPlan::is_variable);
        if recipe.budget.is_some() && !layers.iter().any(variable) {
            return Err(PipelineError::Plan(format!(
                "[budget] needs a pattern whose density can vary, such as rowwise(50%): scopes of at least {VARIABLE} blocks"
            )));
        }
        let notes = builder
            .wins
            .iter()
            .map(|((later, earlier), count)| {
                format!("rule {later} wins over rule {earlier} for {count} tensors")
            })
            .collect();
        let layers = layers
            .into_iter()
            .map(|tasks| LayerPlan { captures: captures(&tasks, sequential), tasks })
            .collect();
        Ok(Self { layers, notes, recipe: recipe.clone() })
    }

    /// A plan that prunes nothing.
    pub(super) fn empty(recipe: &Recipe, config: &Config) -> Self {
        let layer = LayerPlan { tasks: Vec::new(), captures: Vec::new() };
        Self { layers: vec![layer; config.layers], notes: Vec::new(), recipe: recipe.clone() }
    }

    /// One line for each task, by which two plans can be compared.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (index, layer) in self.layers.iter().enumerate() {
            for task in &layer.tasks {
                let names = task.names(index);
                lines.push(format!("{names}: {} by {}", task.pattern, task.method));
            }
        }
        lines
    }
}

struct PlanBuilder<'a> {
    config: &'a Config,
    filter: &'a TensorFilter,
    /// What is wrong, with the tensors it is wrong with.
    wrong: BTreeMap<String, Vec<String>>,
    /// How often a later rule won over an earlier one.
    wins: BTreeMap<(usize, usize), usize>,
    /// Specs as the user wrote them, by the pattern they expand to.
    written: BTreeMap<String, String>,
}

impl PlanBuilder<'_> {
    fn layers(&mut self, recipe: &Recipe) -> Result<Vec<Vec<TaskPlan>>, PipelineError> {
        let shapes = Layer::linear_shapes(self.config);
        let rules = self.rules(recipe)?;
        let mut layers = Vec::with_capacity(self.config.layers);
        for index in 0..self.config.layers {
            let mut said: Vec<Override> = vec![Override::default(); LINEARS.len()];
            for (number, rule, selector) in &rules {
                for (linear, said) in said.iter_mut().enumerate() {
                    let name = Layer::weight_name(index, linear);
                    if !self.filter.takes(&name) || !selector.takes(index, &name) {
                        continue;
                    }
                    if selector.is_for(linear) {
                        self.say(said, *number, rule);
                    } else if *number == 0 {
                        // Beside a coupling: dense, unless a rule gives a spec.
                        said.method = rule.method.clone();
                    }
                }
            }
            let mut tasks = Vec::new();
            let mut done = [false; LINEARS.len()];
            for linear in 0..LINEARS.len() {
                if done[linear] {
                    continue;
                }
                let Some((task, takes)) = self.task(index, linear, &said, &shapes) else {
                    continue;
                };
                takes.iter().for_each(|&linear| done[linear] = true);
                tasks.extend(task);
            }
            layers.push(tasks);
        }
        Ok(layers)
    }

    /// The recipe's own words, then its rules: number, rule, what it is for.
    fn rules(
        &mut self,
        recipe: &Recipe,
    ) -> Result<Vec<(usize, Rule, super::recipe::RuleSelector)>, PipelineError> {
        let own =
            Rule { spec: recipe.spec.clone(), method: recipe.method.clone(), ..Rule::default() };
        let mut rules = vec![(0, own)];
        rules.extend(recipe.rules.iter().cloned().enumerate().map(|(i, rule)| (i + 1, rule)));
        let mut picked = Vec::new();
        for (number, rule) in rules {
            let wrong = |why: String| PipelineError::Plan(format!("[[rule]] {number}: {why}"));
            let selector = rule.selector().map_err(wrong)?;
            if let Some(layer) = selector.beyond(self.config.layers) {
                let last = self.config.layers - 1;
                return Err(wrong(format!("there is no layer {layer}; the last one is {last}")));
            }
            let takes_some = (0..self.config.layers).any(|index| {
                (0..LINEARS.len()).any(|i| selector.takes(index, &Layer::weight_name(index, i)))
            });
            if !takes_some {
                let example = Layer::weight_name(0, 0);
                return Err(wrong(format!(
                    "{rule} is found in the name of no linear; names are like {example}"
                )));
            }
            if let Some(method) = &rule.method {
                method.parse::<Method>().map_err(|error| PipelineError::Plan(error.to_string()))?;
            }
            let mut rule = rule;
            let mut members = None;
            if let Some(spec) = &mut rule.spec {
                let pattern = structure::pattern(spec, self.config)
                    .map_err(|error| PipelineError::Plan(error.to_string()))?;
                // A coupling is for its members, whatever else the rule could be for.
                let linears: Option<Vec<usize>> =
                    pattern.members().iter().map(|name| linear_called(name)).collect();
                members = linears.filter(|linears| !linears.is_empty());
                let written = std::mem::replace(spec, pattern.to_string());
                self.written.insert(spec.clone(), written);
            }
            picked.push((number, rule, selector.among(members)));
        }
        Ok(picked)
    }

    /// A rule has its say on a tensor.
    fn say(&mut self, said: &mut Override, number: usize, rule: &Rule) {
        let before = said.clone();
        if rule.dense {
            // A later rule that prunes the tensor after all goes on from here.
            said.dense = true;
        } else {
            said.dense &= rule.spec.is_none() && rule.density.is_none();
            if let Some(spec) = &rule.spec {
                said.spec = Some(spec.clone());
                said.density = None;
            }
            said.method = rule.method.clone().or(said.method.take());
            said.density = rule.density.or(said.density);
        }
        said.rule = before.rule;
        if number > 0 {
            if let Some(earlier) = before.rule
                && before != *said
            {
                *self.wins.entry((number, earlier)).or_default() += 1;
            }
            said.rule = Some(number);
        }
    }

    /// The task that a tensor belongs to, and the tensors that are then done.
    /// Nothing at all if it stays dense or something is wrong with it.
    fn task(
        &mut self,
        index: usize,
        linear: usize,
        said: &[Override],
        shapes: &[[usize; 2]; 7],
    ) -> Option<(Option<TaskPlan>, Vec<usize>)> {
        let own = &said[linear];
        let text = own.spec.as_ref().filter(|_| !own.dense)?;
        let name = Layer::weight_name(index, linear);
        let pattern: Pattern = text.parse().ok()?;
        let members = pattern.members();
        let mut linears = vec![linear];
        if !members.is_empty() {
            linears = match members
                .iter()
                .map(|member| linear_called(member))
                .collect::<Option<Vec<_>>>()
            {
                Some(linears) => linears,
                None => {
                    let why = format!(
                        "`{pattern}` couples tensors that a layer does not have; a coupling is within one layer, of {}",
                        LINEARS.map(|(name, _)| short(name)).join(", ")
                    );
                    self.wrong.entry(why).or_default().push(name);
                    return Some((None, vec![linear]));
                }
            };
            if let Some(twice) = (1..linears.len()).find(|&i| linears[..i].contains(&linears[i])) {
                let why = format!("`{pattern}` couples it with itself, as {}", members[twice]);
                self.wrong.entry(why).or_default().push(name);
                return Some((None, linears));
            }
            if let Some(&other) = linears.iter().find(|&&other| said[other] != *own) {
                let why = format!(
                    "`{pattern}` couples it with {}, for which the recipe says something else",
                    short(LINEARS[other].0)
                );
                self.wrong.entry(why).or_default().push(name);
                return Some((None, linears));
            }
        }
        let task = match bound(&linears, &pattern, shapes) {
            Ok(spec) => {
                let method = own.method.clone().unwrap_or_else(|| METHOD.to_string());
                let written = self.written.get(text).unwrap_or(text).clone();
                let task = TaskPlan { linears: linears.clone(), spec, pattern, written, method };
                match own.density {
                    Some(density) => Some(task.with_density(density)),
                    None => Some(task),
                }
            }
            Err(error) => {
                let why = error.to_string().lines().next().unwrap_or_default().to_string();
                self.wrong.entry(why).or_default().push(name);
                None
            }
        };
        Some((task, linears))
    }
}

/// A pattern on some of a layer's linears, in its order.
fn bound(
    linears: &[usize],
    pattern: &Pattern,
    shapes: &[[usize; 2]; 7],
) -> Result<Spec, SpecError> {
    let names: Vec<&str> = match (pattern.members(), linears) {
        (members, [linear]) if members.is_empty() => vec![LINEARS[*linear].0],
        (members, _) => members,
    };
    let tensors: Vec<(&str, &[usize])> =
        names.iter().zip(linears).map(|(name, &i)| (*name, &shapes[i][..])).collect();
    pattern.bind_all(&tensors)
}

/// `q_proj` of `self_attn.q_proj`.
pub(super) fn short(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// The linear that a coupling calls `q`, `q_proj` or `self_attn.q_proj`.
pub fn linear_called(member: &str) -> Option<usize> {
    LINEARS.iter().position(|(name, _)| {
        let short = short(name);
        member == *name || member == short || Some(member) == short.strip_suffix("_proj")
    })
}

/// The first names, and how many more there are.
fn few(names: &[String]) -> String {
    match names {
        [a, b, c, rest @ ..] if !rest.is_empty() => {
            format!("{a}, {b}, {c} and {} more", rest.len())
        }
        names => names.join(", "),
    }
}

/// Sites that are captured together. A task needs all of its inputs at once;
/// one that spans attention and the MLP puts the whole layer in one capture.
fn captures(tasks: &[TaskPlan], sequential: bool) -> Vec<Vec<Site>> {
    let sites: Vec<BTreeSet<Site>> = tasks.iter().map(TaskPlan::sites).collect();
    let needed: BTreeSet<Site> = sites.iter().flatten().copied().collect();
    let spans = |sites: &BTreeSet<Site>| {
        sites.iter().any(|&site| site <= Site::Out) && sites.iter().any(|&site| site > Site::Out)
    };
    if !sequential || sites.iter().any(spans) {
        return if needed.is_empty() { Vec::new() } else { vec![needed.into_iter().collect()] };
    }
    let mut captures = Vec::new();
    for half in [[Site::Qkv, Site::Out], [Site::GateUp, Site::Down]] {
        let needed: Vec<Site> = half.into_iter().filter(|site| needed.contains(site)).collect();
        match sites.iter().any(|sites| half.iter().all(|site| sites.contains(site))) {
            true => captures.push(needed),
            false => captures.extend(needed.into_iter().map(|site| vec![site])),
        }
    }
    captures
}
