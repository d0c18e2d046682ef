//! The plan of a pass: what is done to every tensor.
//!
//! ```text
//! Recipe  --parse-->  PlanBuilder  --bind to a model's shapes-->  Plan
//! ```
//!
//! Texts are parsed once, and mistakes are found here, before anything runs.

use super::PipelineError;
use super::recipe::{Budget, Recipe, RecipeError, Rule, RuleSelector};
use super::structure::RecipeSpec;
use crate::format;
use crate::model::{Config, Input, LayerInfo, Site};
use crate::report::distinct;
use openwork::prune::{Method, MethodError};
use openwork::spec::{Band, bands};
use openwork::{Pattern, Spec, SpecError};
use regex::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The default method.
pub const METHOD: &str = openwork::prune::DEFAULT_METHOD;

/// Minimum number of rows in a band: enough for matrix products at full speed, and few
/// enough to occupy many workers.
const BAND_ROWS: usize = 192;

/// Minimum number of blocks in a scope whose density can vary.
const VARIABLE: usize = 16;

/// The plan of a pass: what is done to every linear.
#[derive(Clone, Debug)]
pub struct Plan {
    /// One per layer.
    pub layers: Vec<LayerPlan>,
    /// Notes for the user: rules that override others.
    pub notes: Vec<String>,
    /// A mean density to distribute over the layers.
    pub budget: Option<Budget>,
    /// Whether inputs are captured again after each site.
    pub sequential: bool,
}

/// What is done to one layer.
#[derive(Clone, Debug)]
pub struct LayerPlan {
    /// Tensors that are pruned together.
    pub tasks: Vec<TaskPlan>,
    /// Sites whose inputs are captured together, in order; the linears that read
    /// them are pruned before the next capture.
    pub captures: Vec<Vec<Site>>,
}

/// Tensors that are pruned together: one, or the members of a coupling.
#[derive(Clone, Debug)]
pub struct TaskPlan {
    /// Indices of the layer's linears, in the spec's order.
    pub linears: Vec<usize>,
    /// The full names of their weights.
    pub names: Vec<String>,
    /// The inputs that they read.
    pub sites: BTreeSet<Site>,
    /// The pattern, with the number of blocks that is kept.
    pub pattern: Pattern,
    /// The pattern, bound to the shapes of these linears.
    pub spec: Spec,
    /// The method.
    pub method: Arc<Method>,
    /// The spec as given in the recipe, such as `mlp keep 75%`.
    pub written: String,
}

/// The tensors that may be pruned.
#[derive(Clone, Debug, Default)]
pub struct TensorFilter {
    /// Only tensors whose names match.
    pub include: Option<Regex>,
    /// No tensor whose name matches.
    pub exclude: Option<Regex>,
}

impl TensorFilter {
    fn matches(&self, name: &str) -> bool {
        self.include.as_ref().is_none_or(|include| include.is_match(name))
            && !self.exclude.as_ref().is_some_and(|exclude| exclude.is_match(name))
    }
}

impl TaskPlan {
    /// Binds a pattern to some of the linears of a layer, in its order.
    pub fn new(
        linears: Vec<usize>,
        pattern: Pattern,
        method: Arc<Method>,
        info: &LayerInfo,
    ) -> Result<Self, SpecError> {
        let spec = bind(&linears, &pattern, info)?;
        let written = pattern.to_string();
        Ok(Self::bound(linears, spec, pattern, method, written, info))
    }

    /// The task of a bound pattern.
    fn bound(
        linears: Vec<usize>,
        spec: Spec,
        pattern: Pattern,
        method: Arc<Method>,
        written: String,
        info: &LayerInfo,
    ) -> Self {
        let names = linears.iter().map(|&linear| info.weight_name(linear)).collect();
        let sites = linears.iter().map(|&linear| info.linears[linear].site()).collect();
        Self { linears, names, sites, spec, pattern, method, written }
    }

    /// Bands of rows that are pruned separately, from top to bottom; one band of all
    /// rows if the pattern or the method needs them together. The choice of bands affects the
    /// result, because each band is pruned independently.
    pub fn bands(&self) -> Vec<Band> {
        let cut = || bands(&self.pattern, &self.spec, BAND_ROWS);
        self.method.by_rows().then(cut).flatten().unwrap_or_else(|| {
            let rows = 0..self.spec.tensors()[0].matrix().0;
            vec![Band { rows, spec: self.spec.clone() }]
        })
    }

    /// The names of its tensors, for messages.
    pub fn names(&self) -> String {
        self.names.join(", ")
    }

    /// The sites whose inputs it needs.
    pub fn sites(&self) -> &BTreeSet<Site> {
        &self.sites
    }

    /// The same task with this share of every scope's blocks kept.
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

    /// Whether its density can vary: a scope has enough blocks, and no inner level depends
    /// on how many of them are kept.
    pub fn is_variable(&self) -> bool {
        self.spec.blocks_per_scope() >= VARIABLE && !self.spec.has_levels()
    }

    /// Weights in its tensors.
    pub fn weights(&self) -> usize {
        self.spec.tensors().iter().map(|tensor| tensor.size()).sum()
    }
}

/// A value with the text by which it is compared.
#[derive(Debug)]
struct Parsed<T> {
    value: Arc<T>,
    text: String,
}

impl<T: ToString> Parsed<T> {
    fn new(value: T) -> Self {
        Self { text: value.to_string(), value: Arc::new(value) }
    }
}

impl<T> Clone for Parsed<T> {
    fn clone(&self) -> Self {
        Self { value: self.value.clone(), text: self.text.clone() }
    }
}

impl<T> PartialEq for Parsed<T> {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

/// A rule of a recipe, parsed. Rule 0 is the recipe's own spec and method.
#[derive(Clone, Debug)]
struct ParsedRule {
    /// For messages.
    name: String,
    selector: RuleSelector,
    spec: Option<RecipeSpec>,
    method: Option<Parsed<Method>>,
    density: Option<f64>,
    dense: bool,
}

impl ParsedRule {
    fn new(rule: &Rule) -> Result<Self, RecipeError> {
        let method = rule.method.as_deref().map(str::parse).transpose();
        let method = method.map_err(|error: MethodError| RecipeError(error.to_string()))?;
        Ok(Self {
            name: rule.to_string(),
            selector: rule.selector().map_err(RecipeError)?,
            spec: rule.spec.as_deref().map(RecipeSpec::parse).transpose()?,
            method: method.map(Parsed::new),
            density: rule.density,
            dense: rule.dense,
        })
    }
}

/// A rule, bound to the shapes of a model.
struct BoundRule<'a> {
    rule: &'a ParsedRule,
    selector: RuleSelector,
    /// The pattern, and the spec as the recipe has it.
    pattern: Option<(Parsed<Pattern>, String)>,
}

/// The settings of one tensor after the rules applied so far.
#[derive(Clone, Default, PartialEq)]
struct Override {
    pattern: Option<(Parsed<Pattern>, String)>,
    method: Option<Parsed<Method>>,
    density: Option<f64>,
    dense: bool,
    /// The last rule that matched, from 1.
    rule: Option<usize>,
}

/// A recipe, parsed: makes plans for models of any shape.
#[derive(Clone, Debug)]
pub struct PlanBuilder {
    rules: Vec<ParsedRule>,
    budget: Option<Budget>,
    filter: TensorFilter,
    sequential: bool,
}

impl PlanBuilder {
    /// Parses the patterns and methods of a recipe without passes.
    pub fn new(
        recipe: &Recipe,
        filter: &TensorFilter,
        sequential: bool,
    ) -> Result<Self, PipelineError> {
        let own =
            Rule { spec: recipe.spec.clone(), method: recipe.method.clone(), ..Rule::default() };
        let parse = |(number, rule): (usize, &Rule)| {
            ParsedRule::new(rule).map_err(|error| in_rule(number, &error))
        };
        let rules = std::iter::once(&own).chain(&recipe.rules).enumerate().map(parse);
        Ok(Self {
            rules: rules.collect::<Result<_, _>>()?,
            budget: recipe.budget,
            filter: filter.clone(),
            sequential,
        })
    }

    /// The recipe's own spec.
    pub fn spec(&self) -> Option<&RecipeSpec> {
        self.rules[0].spec.as_ref()
    }

    /// The plan for a model with this config.
    pub fn plan(&self, config: &Config) -> Result<Plan, PipelineError> {
        let mut binder = Binder {
            builder: self,
            config,
            // The table has it.
            default_method: Arc::new(METHOD.parse().expect("the default method exists")),
            problems: BTreeMap::new(),
            overridden: BTreeMap::new(),
        };
        let layers = binder.layers()?;
        if !binder.problems.is_empty() {
            let line = |(why, names): (&String, &Vec<String>)| format!("  {}: {why}", few(names));
            let lines: Vec<String> = binder.problems.iter().map(line).collect();
            return Err(PipelineError::Plan(format!(
                "the plan does not fit the model; exclude these tensors or give them a rule:\n{}",
                lines.join("\n")
            )));
        }
        if layers.iter().all(|tasks| tasks.is_empty()) {
            return Err(PipelineError::Plan(
                "no tensor would be pruned; give {spec}, or check {include}, {exclude} and the rules"
                    .to_string(),
            ));
        }
        let variable = |tasks: &Vec<TaskPlan>| tasks.iter().any(TaskPlan::is_variable);
        if self.budget.is_some() && !layers.iter().any(variable) {
            return Err(PipelineError::Plan(format!(
                "[budget] needs a pattern whose density can vary, such as rowwise(50%): scopes of at least {VARIABLE} blocks"
            )));
        }
        let note = |((later, earlier), count): (&(usize, usize), &usize)| {
            format!("rule {later} overrides rule {earlier} for {}", format::count(*count, "tensor"))
        };
        let notes = binder.overridden.iter().map(note).collect();
        let layer = |(index, tasks): (usize, Vec<TaskPlan>)| {
            let info = LayerInfo::new(config, index);
            LayerPlan { captures: captures(&tasks, self.sequential, &info), tasks }
        };
        Ok(Plan {
            layers: layers.into_iter().enumerate().map(layer).collect(),
            notes,
            budget: self.budget,
            sequential: self.sequential,
        })
    }
}

impl Plan {
    /// A plan for `layers` layers that prunes nothing.
    pub(super) fn empty(layers: usize) -> Self {
        let layer = LayerPlan { tasks: Vec::new(), captures: Vec::new() };
        Self { layers: vec![layer; layers], notes: Vec::new(), budget: None, sequential: false }
    }

    /// Its tasks, with the index of their layer.
    pub fn tasks(&self) -> impl Iterator<Item = (usize, &TaskPlan)> {
        let tasks = |(index, layer)| LayerPlan::tasks_of(layer, index);
        self.layers.iter().enumerate().flat_map(tasks)
    }

    /// One line per task, by which two plans can be compared.
    pub fn lines(&self) -> Vec<String> {
        let line = |(_, task): (usize, &TaskPlan)| {
            format!("{}: {} by {}", task.names(), task.pattern, task.method)
        };
        self.tasks().map(line).collect()
    }

    /// The specs that occur, as the recipe has them.
    pub fn specs(&self) -> String {
        distinct(self.tasks().map(|(_, task)| task.written.as_str())).join(" | ")
    }

    /// The methods that occur.
    pub fn methods(&self) -> String {
        let methods: Vec<String> = self.tasks().map(|(_, task)| task.method.to_string()).collect();
        distinct(methods.iter().map(String::as_str)).join(" | ")
    }
}

impl LayerPlan {
    fn tasks_of(&self, index: usize) -> impl Iterator<Item = (usize, &TaskPlan)> {
        self.tasks.iter().map(move |task| (index, task))
    }

    /// The plan with another density for every task whose density can vary.
    pub(super) fn with_density(&self, density: Option<f64>) -> Self {
        let task = |task: &TaskPlan| match density {
            Some(density) if task.is_variable() => task.with_density(density),
            _ => task.clone(),
        };
        Self { tasks: self.tasks.iter().map(task).collect(), captures: self.captures.clone() }
    }
}

/// Binds a recipe to the shapes of a model.
struct Binder<'a> {
    builder: &'a PlanBuilder,
    config: &'a Config,
    default_method: Arc<Method>,
    /// Problems found so far, each with the tensors it concerns.
    problems: BTreeMap<String, Vec<String>>,
    /// For how many tensors a later rule overrides an earlier one.
    overridden: BTreeMap<(usize, usize), usize>,
}

impl<'a> Binder<'a> {
    fn layers(&mut self) -> Result<Vec<Vec<TaskPlan>>, PipelineError> {
        let rules = self.rules()?;
        let mut layers = Vec::with_capacity(self.config.layers);
        for index in 0..self.config.layers {
            let info = LayerInfo::new(self.config, index);
            let mut overrides = vec![Override::default(); info.linears.len()];
            for (number, rule) in rules.iter().enumerate() {
                for (linear, current) in overrides.iter_mut().enumerate() {
                    let name = info.weight_name(linear);
                    if !self.builder.filter.matches(&name) || !rule.selector.matches(index, &name) {
                        continue;
                    }
                    if rule.selector.prunes(&info.linears[linear]) {
                        self.apply(current, number, rule);
                    } else if number == 0 {
                        // Beside a coupling: dense, unless a rule gives a spec.
                        current.method = rule.rule.method.clone();
                    }
                }
            }
            let mut tasks = Vec::new();
            let mut done = vec![false; info.linears.len()];
            for linear in 0..info.linears.len() {
                if done[linear] {
                    continue;
                }
                let Some((task, members)) = self.task(&info, linear, &overrides) else {
                    continue;
                };
                members.iter().for_each(|&linear| done[linear] = true);
                tasks.extend(task);
            }
            layers.push(tasks);
        }
        Ok(layers)
    }

    /// The rules with their patterns for this model.
    fn rules(&self) -> Result<Vec<BoundRule<'a>>, PipelineError> {
        let bind = |(number, rule): (usize, &'a ParsedRule)| {
            self.rule(rule).map_err(|error| in_rule(number, &error))
        };
        self.builder.rules.iter().enumerate().map(bind).collect()
    }

    fn rule(&self, rule: &'a ParsedRule) -> Result<BoundRule<'a>, RecipeError> {
        let layers = self.config.layers;
        if let Some(layer) = rule.selector.beyond(layers) {
            let last = layers - 1;
            return Err(RecipeError(format!("there is no layer {layer}; the last one is {last}")));
        }
        let matches = |index: usize| {
            let info = LayerInfo::new(self.config, index);
            (0..info.linears.len()).any(|i| rule.selector.matches(index, &info.weight_name(i)))
        };
        if !(0..layers).any(matches) {
            return Err(RecipeError(format!(
                "{} matches no linear layer; tensor names look like {}",
                rule.name,
                LayerInfo::new(self.config, 0).weight_name(0)
            )));
        }
        let mut members = None;
        let pattern = match &rule.spec {
            None => None,
            Some(spec) => {
                let pattern = spec.pattern(self.config)?;
                // A coupling applies to its members, whatever else the rule matches.
                let names: Vec<String> =
                    pattern.members().iter().map(ToString::to_string).collect();
                let info = LayerInfo::new(self.config, 0);
                let known = |name: &String| info.linears.iter().any(|l| l.is_called(name));
                members = (!names.is_empty() && names.iter().all(known)).then_some(names);
                Some((Parsed::new(pattern), spec.to_string()))
            }
        };
        Ok(BoundRule { rule, selector: rule.selector.limited_to(members), pattern })
    }

    /// Applies a rule to a tensor.
    fn apply(&mut self, current: &mut Override, number: usize, bound: &BoundRule<'_>) {
        let before = current.clone();
        let rule = bound.rule;
        if rule.dense {
            // A later rule may prune the tensor again, with the settings so far.
            current.dense = true;
        } else {
            current.dense &= bound.pattern.is_none() && rule.density.is_none();
            if bound.pattern.is_some() {
                current.pattern = bound.pattern.clone();
                current.density = None;
            }
            current.method = rule.method.clone().or(current.method.take());
            current.density = rule.density.or(current.density);
        }
        current.rule = before.rule;
        if number > 0 {
            if let Some(earlier) = before.rule
                && before != *current
            {
                *self.overridden.entry((number, earlier)).or_default() += 1;
            }
            current.rule = Some(number);
        }
    }

    /// The task that a tensor belongs to, and the tensors that the task covers. `None` if
    /// the tensor stays dense; without a task if there is a problem.
    fn task(
        &mut self,
        info: &LayerInfo,
        linear: usize,
        overrides: &[Override],
    ) -> Option<(Option<TaskPlan>, Vec<usize>)> {
        let own = &overrides[linear];
        let (pattern, written) = own.pattern.as_ref().filter(|_| !own.dense)?;
        let name = info.weight_name(linear);
        let mut problem = |why: String, covered: Vec<usize>| {
            self.problems.entry(why).or_default().push(name.clone());
            Some((None, covered))
        };
        let members = pattern.value.members();
        let mut linears = vec![linear];
        if !members.is_empty() {
            let expert = info.linears[linear].expert;
            let found: Option<Vec<usize>> =
                members.iter().map(|name| info.find(name, expert)).collect();
            linears = match found {
                Some(linears) => linears,
                None => {
                    let why = format!(
                        "`{}` couples tensors that a layer does not have; a coupling is within one layer, of {}",
                        pattern.text,
                        distinct(info.linears.iter().map(|linear| linear.short())).join(", ")
                    );
                    return problem(why, linears);
                }
            };
            if let Some(twice) = (1..linears.len()).find(|&i| linears[..i].contains(&linears[i])) {
                let why =
                    format!("`{}` couples it with itself, as {}", pattern.text, members[twice]);
                return problem(why, linears);
            }
            if let Some(&other) = linears.iter().find(|&&other| overrides[other] != *own) {
                let why = format!(
                    "`{}` couples it with {}, which other rules of the recipe change",
                    pattern.text,
                    info.linears[other].short()
                );
                return problem(why, linears);
            }
        }
        let spec = match bind(&linears, &pattern.value, info) {
            Ok(spec) => spec,
            Err(error) => {
                let why = error.to_string().lines().next().unwrap_or_default().to_string();
                return problem(why, linears);
            }
        };
        let method = match &own.method {
            Some(method) => method.value.clone(),
            None => self.default_method.clone(),
        };
        let (pattern, written) = (Pattern::clone(&pattern.value), written.clone());
        let mut task = TaskPlan::bound(linears.clone(), spec, pattern, method, written, info);
        if let Some(density) = own.density {
            task = task.with_density(density);
            task.written = task.pattern.to_string();
        }
        Some((Some(task), linears))
    }
}

/// An error of a rule; of the recipe itself if its number is 0.
fn in_rule(number: usize, error: &RecipeError) -> PipelineError {
    PipelineError::Plan(match number {
        0 => error.to_string(),
        number => format!("[[rule]] {number}: {error}"),
    })
}

/// Binds a pattern to some of a layer's linears, in its order.
pub(super) fn bind(
    linears: &[usize],
    pattern: &Pattern,
    info: &LayerInfo,
) -> Result<Spec, SpecError> {
    let names: Vec<&str> = match (pattern.members(), linears) {
        (members, [linear]) if members.is_empty() => vec![&info.linears[*linear].name],
        (members, _) => members,
    };
    let tensors: Vec<(&str, &[usize])> =
        names.iter().zip(linears).map(|(name, &i)| (*name, &info.linears[i].shape[..])).collect();
    pattern.bind_all(&tensors)
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

/// Maximum size of the statistics of one capture, in bytes, unless one task needs more.
const CAPTURE_BYTES: usize = 1 << 30;

/// Sites that are captured together. A task needs all of its inputs at once; one that
/// spans attention, MLP and per-layer embedding, or two of them, puts the whole layer in
/// one capture. The statistics of many experts are captured in parts.
fn captures(tasks: &[TaskPlan], sequential: bool, info: &LayerInfo) -> Vec<Vec<Site>> {
    let needed: BTreeSet<Site> = tasks.iter().flat_map(TaskPlan::sites).copied().collect();
    let spans = |task: &TaskPlan| {
        let reads = |pair: &&[Input; 2]| task.sites().iter().any(|site| pair.contains(&site.input));
        Input::PARTS.iter().filter(reads).count() > 1
    };
    if !sequential || tasks.iter().any(spans) {
        let all: Vec<Site> = needed.into_iter().collect();
        return with_common(if all.is_empty() { Vec::new() } else { vec![all] });
    }
    let mut captures = Vec::new();
    for pair in Input::PARTS {
        let both = |task: &TaskPlan| {
            pair.iter().all(|input| task.sites().iter().any(|site| site.input == *input))
        };
        // The inputs of each capture, and what has to be in the same one.
        let together: Vec<Vec<Input>> = match tasks.iter().any(both) {
            true => vec![pair.to_vec()],
            false => pair.iter().map(|input| vec![*input]).collect(),
        };
        for inputs in together {
            let experts: BTreeSet<Option<u16>> = needed
                .iter()
                .filter(|site| inputs.contains(&site.input))
                .map(|site| site.expert)
                .collect();
            let (mut part, mut bytes) = (Vec::new(), 0);
            for expert in experts {
                let sites = inputs.iter().map(|&input| Site { input, expert });
                let sites: Vec<Site> = sites.filter(|site| needed.contains(site)).collect();
                let more: usize = sites.iter().map(|&site| 8 * info.width(site).pow(2)).sum();
                if !part.is_empty() && bytes + more > CAPTURE_BYTES {
                    captures.push(std::mem::take(&mut part));
                    bytes = 0;
                }
                part.extend(sites);
                bytes += more;
            }
            if !part.is_empty() {
                captures.push(part);
            }
        }
    }
    with_common(captures)
}

/// Adds the statistics of all tokens, which experts with few tokens need.
fn with_common(mut captures: Vec<Vec<Site>>) -> Vec<Vec<Site>> {
    for part in &mut captures {
        let all = Site::from(Input::GateUp);
        let of_expert = |site: &Site| site.input == Input::GateUp && site.expert.is_some();
        if part.iter().any(of_expert) && !part.contains(&all) {
            part.push(all);
        }
        part.sort_unstable();
    }
    captures
}
