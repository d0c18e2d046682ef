//! The planned passes of a recipe. Each pass prunes the result of the previous one, and
//! may remove structures or drop whole layers.

use super::PipelineError;
use super::plan::{Plan, PlanBuilder, TensorFilter};
use super::recipe::{Recipe, RecipeError};
use super::structure::Dropped;
use crate::model::{Config, LayerInfo};
use crate::shrink::{Change, Removable, ShrinkError, ShrinkPlan, Sizes, Uneven};
use openwork::Mask;
use std::collections::BTreeMap;

/// The passes of a recipe, bound to a model. A plain run has one.
#[derive(Clone, Debug)]
pub struct Passes {
    /// In their order, at least one.
    pub list: Vec<Pass>,
    /// The recipe that they were made from.
    pub recipe: Recipe,
    /// The tensors that may be pruned.
    pub filter: TensorFilter,
    /// Whether inputs are captured again after each site.
    pub sequential: bool,
}

/// One pass: tensors are pruned, or layers are dropped.
#[derive(Clone, Debug)]
pub struct Pass {
    /// The spec as given in the recipe; `None` if only rules have one.
    pub spec: Option<String>,
    /// What is done to every tensor; empty if layers or experts are dropped.
    pub plan: Plan,
    /// Layers or experts to drop as a whole, instead of pruning tensors.
    pub dropped: Option<Dropped>,
    /// Whether pruned heads and channels are removed.
    pub remove: bool,
    /// Sizes of the model before and after.
    pub change: Change,
    /// None if nothing is pruned.
    builder: Option<PlanBuilder>,
}

impl Passes {
    /// Binds a recipe to a model: each pass to the shapes left by the previous one.
    pub fn new(
        recipe: &Recipe,
        filter: &TensorFilter,
        config: &Config,
        sequential: bool,
    ) -> Result<Self, PipelineError> {
        recipe.check().map_err(plan_error)?;
        let mut config = config.clone();
        let list = each_pass(recipe, |recipe| {
            let pass = Pass::new(recipe, filter, &config, sequential)?;
            config = pass.change.after.config(&config);
            Ok(pass)
        })?;
        Ok(Self { list, recipe: recipe.clone(), filter: filter.clone(), sequential })
    }

    /// Checks the patterns and methods of a recipe, without a model.
    pub fn check(
        recipe: &Recipe,
        filter: &TensorFilter,
        sequential: bool,
    ) -> Result<(), PipelineError> {
        recipe.check().map_err(plan_error)?;
        each_pass(recipe, |recipe| PlanBuilder::new(recipe, filter, sequential)).map(drop)
    }

    /// One pass that prunes nothing: the model is only trained.
    pub fn unpruned(config: &Config) -> Self {
        let sizes = Sizes::new(config);
        let pass = Pass {
            spec: None,
            plan: Plan::empty(config.layers),
            dropped: None,
            remove: false,
            change: Change { before: sizes, after: sizes },
            builder: None,
        };
        let (recipe, filter) = (Recipe::default(), TensorFilter::default());
        Self { list: vec![pass], recipe, filter, sequential: false }
    }

    /// Whether there is one pass, and it leaves all shapes as they are.
    pub fn is_plain(&self) -> bool {
        matches!(self.list.as_slice(), [pass] if pass.dropped.is_none() && !pass.remove)
    }

    /// Layers of the model that the last pass leaves.
    pub fn layers(&self) -> usize {
        self.list.last().map_or(0, |pass| pass.change.after.layers)
    }

    /// Notes of all plans, for the user.
    pub fn notes(&self) -> Vec<String> {
        self.list.iter().flat_map(|pass| pass.plan.notes.iter().cloned()).collect()
    }

    /// One line per task, by which two runs can be compared.
    pub fn lines(&self) -> Vec<String> {
        if self.is_plain() {
            return self.list[0].plan.lines();
        }
        let lines = |(i, pass): (usize, &Pass)| {
            let number = i + 1;
            let remove = if pass.remove { ", removed" } else { "" };
            let tasks = pass.plan.lines().into_iter();
            let mut lines: Vec<String> =
                tasks.map(|line| format!("pass {number}: {line}{remove}")).collect();
            lines.extend(pass.dropped.map(|dropped| match dropped {
                Dropped::Layers { kept } => format!("pass {number}: keep {kept} layers"),
                Dropped::Experts { kept, score } => {
                    format!("pass {number}: keep {kept} experts by {score}")
                }
            }));
            lines
        };
        self.list.iter().enumerate().flat_map(lines).collect()
    }
}

impl Pass {
    fn new(
        recipe: &Recipe,
        filter: &TensorFilter,
        config: &Config,
        sequential: bool,
    ) -> Result<Self, PipelineError> {
        let wrong = |why: &str| Err(PipelineError::Plan(why.to_string()));
        let before = Sizes::new(config);
        let builder = PlanBuilder::new(recipe, filter, sequential)?;
        let spec = builder.spec().map(ToString::to_string);
        let dropped = builder.spec().map(|spec| spec.dropped(config)).transpose();
        let dropped = dropped.map_err(plan_error)?.flatten();
        if config.encoder.is_some() && (recipe.remove || dropped.is_some()) {
            return Err(PipelineError::Plan(format!(
                "{} models are encoders, from which nothing is removed: prune them to patterns, and leave out remove and `layers`",
                config.family.name
            )));
        }
        if let Some(dropped) = dropped {
            if recipe.budget.is_some() || !recipe.rules.is_empty() {
                return wrong(
                    "a pass that drops layers or experts does nothing else; give rules and budget a [[pass]] of their own",
                );
            }
            let after = match dropped {
                Dropped::Layers { kept } => Sizes { layers: kept, ..before },
                Dropped::Experts { kept, .. } => Sizes { experts: kept, ..before },
            };
            let change = Change { before, after };
            let plan = Plan::empty(config.layers);
            let builder = Some(builder);
            return Ok(Self { spec, plan, dropped: Some(dropped), remove: false, change, builder });
        }
        let plan = builder.plan(config)?;
        let mut change = Change { before, after: before };
        if recipe.remove {
            if recipe.budget.is_some() {
                return wrong(
                    "remove and [budget] cannot be combined: a budget gives layers different numbers of channels, and config.json has one number for all",
                );
            }
            change = predicted(&plan, config)?;
        }
        let builder = Some(builder);
        Ok(Self { spec, plan, dropped: None, remove: recipe.remove, change, builder })
    }

    /// The plan for the model left by the previous pass. Its shapes may be smaller than the
    /// predicted ones by chance, and which of several kinds of layers are left is not
    /// predicted.
    pub(super) fn plan_for(&self, config: &Config) -> Result<Plan, PipelineError> {
        match &self.builder {
            Some(builder) => builder.plan(config),
            None => Ok(self.plan.clone()),
        }
    }

    /// The spec for messages.
    pub fn spec(&self) -> &str {
        self.spec.as_deref().unwrap_or("rules")
    }
}

/// What `make` makes of every pass of a recipe; its errors say of which, if there are several.
fn each_pass<T>(
    recipe: &Recipe,
    mut make: impl FnMut(&Recipe) -> Result<T, PipelineError>,
) -> Result<Vec<T>, PipelineError> {
    let recipes = recipe.each_pass();
    let make = |(number, recipe): (usize, &Recipe)| {
        make(recipe).map_err(|error| match (recipes.len(), error) {
            (1, error) => error,
            (_, error) => PipelineError::Plan(format!("[[pass]] {}: {error}", number + 1)),
        })
    };
    recipes.iter().enumerate().map(make).collect()
}

fn plan_error(error: RecipeError) -> PipelineError {
    PipelineError::Plan(error.to_string())
}

/// The sizes after a plan, found by removing random blocks.
fn predicted(plan: &Plan, config: &Config) -> Result<Change, ShrinkError> {
    // Without a random order the blocks of a 2:4 would line up in columns.
    let mut known: BTreeMap<String, Mask> = BTreeMap::new();
    let mut spares = Vec::with_capacity(plan.layers.len());
    for (index, layer) in plan.layers.iter().enumerate() {
        let info = LayerInfo::new(config, index);
        let mut weights = |linear: usize| -> Result<Vec<f32>, ShrinkError> {
            let task = layer.tasks.iter().find(|task| task.linears.contains(&linear));
            let [rows, columns] = info.linears[linear].shape;
            let len = rows * columns;
            let Some(task) = task else { return Ok(vec![1.0; len]) };
            // Experts that are pruned alike share one example.
            let shapes: Vec<_> = task.linears.iter().map(|&i| info.linears[i].shape).collect();
            let key = format!("{shapes:?} {}", task.pattern);
            let mask = known.entry(key).or_insert_with(|| Mask::example(&task.spec, 0));
            let member = task.linears.iter().position(|&i| i == linear).unwrap_or(0);
            let bits = &mask.tensors()[member];
            Ok((0..len).map(|i| f32::from(bits.get(i))).collect())
        };
        spares.push(Removable::from_weights(config, index, &mut weights)?);
    }
    Ok(ShrinkPlan::new(config, &spares, Uneven::Refuse)?.change)
}
