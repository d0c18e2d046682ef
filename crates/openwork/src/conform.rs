//! Conformity to a spec with levels: the search for a choice of blocks.
//!
//! Weights do not tell which blocks a level kept, so they conform if *some* choice lets
//! every level hold. Which scopes of an inner level touch which blocks of the outer one is
//! fixed by the shapes: scopes of the outer level that share none of them are independent
//! *classes*. Within a class, blocks are decided one by one, in rising order; each goes to
//! the next place of the compacted tensor of its side, and an inner class is checked as soon
//! as all of its places are filled. What is left to decide then depends only on the number
//! of kept blocks and on the blocks of unfinished inner classes, so a state that has failed
//! is never entered again: the search is exact, and linear where inner classes lie within
//! single blocks. It counts its work and gives up at a limit.

use crate::choice::Choice;
use crate::mask::{Bits, Breach, Mask};
use crate::spec::{Element, Level, Side, Spec};
use std::collections::HashSet;

/// The work after which a search is given up: visits of weights, at least this many, and for
/// each weight of the tensor.
const MAX_VISITS: u64 = 20_000_000;
const MAX_VISITS_PER_WEIGHT: u64 = 64;
/// The maximum number of failed states that are remembered.
const MAX_FAILED: usize = 1 << 20;

/// Finds a choice of blocks that lets `mask` conform to every level of `spec`. If `exact`,
/// blocks are kept or dropped whole, and exactly as many as the spec says; otherwise the mask
/// tells only which weights are not zero.
pub(crate) fn search(mask: &Mask, spec: &Spec, exact: bool) -> Result<Choice, Breach> {
    let tensor = &spec.tensors()[0];
    let bits = &mask.tensors()[0];
    let plan = Plan::new(spec);
    let mut search = Search::new(&plan, exact);
    for (offset, cell) in search.cells.iter_mut().enumerate() {
        *cell = if bits.get(offset) { Cell::Set } else { Cell::Zero };
    }
    if exact && tensor.domain_size() < tensor.size() {
        let dropped = (0..tensor.size()).filter(|&offset| !bits.get(offset));
        let outside = |offset: usize| spec.locate(Element { tensor: 0, offset }).is_none();
        if dropped.into_iter().any(outside) {
            return Err(Breach::Outside { tensor: tensor.name().to_string() });
        }
    }
    let mut left = MAX_VISITS.max(MAX_VISITS_PER_WEIGHT * tensor.size() as u64);
    search.choice(&mut left).map_err(|(scope, failure)| match failure {
        Failure::GaveUp => Breach::Undecided { scope },
        Failure::Breach(breach @ Breach::Inside { .. }) => breach,
        Failure::Breach(breach) => Breach::Outermost(Box::new(breach)),
    })
}

/// Lists of numbers, one after the other.
struct Lists {
    starts: Vec<u32>,
    items: Vec<u32>,
}

impl Lists {
    /// `count` lists of the items paired with their index, in the order of the pairs.
    fn new(count: usize, pairs: &[(u32, u32)]) -> Self {
        let mut starts = vec![0; count + 1];
        pairs.iter().for_each(|&(list, _)| starts[list as usize + 1] += 1);
        (0..count).for_each(|i| starts[i + 1] += starts[i]);
        let (mut next, mut items) = (starts.clone(), vec![0; pairs.len()]);
        for &(list, item) in pairs {
            items[next[list as usize] as usize] = item;
            next[list as usize] += 1;
        }
        Self { starts, items }
    }

    fn len(&self) -> usize {
        self.starts.len() - 1
    }

    fn get(&self, list: usize) -> &[u32] {
        &self.items[self.starts[list] as usize..self.starts[list + 1] as usize]
    }
}

/// What the shapes of a level alone tell.
struct Plan<'a> {
    spec: &'a Spec,
    /// The scopes of each class.
    classes: Lists,
    inner: [Option<Box<InnerPlan<'a>>>; 2],
}

/// The same for a level inside another. Places are numbered by scope of the outer level, then
/// by block of the compacted scope.
struct InnerPlan<'a> {
    level: &'a Level,
    plan: Plan<'a>,
    /// The classes that have weights in each place.
    touched: Lists,
    /// The places in which each class has weights.
    places: Lists,
}

impl<'a> Plan<'a> {
    fn new(spec: &'a Spec) -> Self {
        let inner = Side::BOTH
            .map(|side| spec.level(side).map(|level| Box::new(InnerPlan::new(spec, level))));
        // Unites scopes that share an inner class; the lowest represents a class.
        let mut parent: Vec<u32> = (0..spec.scopes() as u32).collect();
        let find = |parent: &mut [u32], mut scope: u32| {
            while parent[scope as usize] != scope {
                let up = parent[parent[scope as usize] as usize];
                parent[scope as usize] = up;
                scope = up;
            }
            scope
        };
        for inner in inner.iter().flatten() {
            let count = inner.level.blocks() as u32;
            for class in 0..inner.places.len() {
                for pair in inner.places.get(class).windows(2) {
                    let [a, b] = [pair[0], pair[1]].map(|place| find(&mut parent, place / count));
                    parent[a.max(b) as usize] = a.min(b);
                }
            }
        }
        let (mut numbers, mut count) = (vec![0; spec.scopes()], 0);
        let mut pairs = Vec::with_capacity(spec.scopes());
        for scope in 0..spec.scopes() as u32 {
            let root = find(&mut parent, scope);
            if root == scope {
                numbers[scope as usize] = count;
                count += 1;
            }
            pairs.push((numbers[root as usize], scope));
        }
        Self { spec, classes: Lists::new(count as usize, &pairs), inner }
    }
}

impl<'a> InnerPlan<'a> {
    fn new(outer: &Spec, level: &'a Level) -> Self {
        let (spec, count) = (level.spec(), level.blocks());
        let plan = Plan::new(spec);
        let mut place_of = vec![0; spec.tensors()[0].size()];
        for place in 0..outer.scopes() * count {
            level.visit_place(place / count, place % count, |at, _| place_of[at] = place as u32);
        }
        let mut pairs = Vec::new();
        for class in 0..plan.classes.len() {
            let first = pairs.len();
            for &scope in plan.classes.get(class) {
                for block in 0..spec.blocks_per_scope() {
                    let places = spec.elements(scope as usize, block).map(|e| place_of[e.offset]);
                    pairs.extend(places.map(|place| (class as u32, place)));
                }
            }
            pairs[first..].sort_unstable();
            let mut last = None;
            let fresh = |pair: &(u32, u32)| last.replace(*pair) != Some(*pair);
            let own: Vec<_> = pairs[first..].iter().copied().filter(fresh).collect();
            pairs.truncate(first);
            pairs.extend(own);
        }
        let places = Lists::new(plan.classes.len(), &pairs);
        pairs.iter_mut().for_each(|pair| *pair = (pair.1, pair.0));
        let touched = Lists::new(outer.scopes() * count, &pairs);
        Self { level, plan, touched, places }
    }
}

/// What is known of a weight.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cell {
    Zero,
    Set,
    Padding,
}

/// Why a class has no choice.
enum Failure {
    Breach(Breach),
    GaveUp,
}

/// The search at one level.
struct Search<'p> {
    plan: &'p Plan<'p>,
    exact: bool,
    /// The cells of the level's tensor.
    cells: Vec<Cell>,
    kept: Bits,
    inner: [Option<Box<InnerSearch<'p>>>; 2],
}

struct InnerSearch<'p> {
    plan: &'p InnerPlan<'p>,
    search: Search<'p>,
    /// For each class, its places that are not filled yet.
    open: Vec<u32>,
    /// For each place, its classes that are not complete yet.
    unfinished: Vec<u32>,
}

/// What a block holds.
struct Held {
    set: usize,
    real: usize,
}

/// A decision and the alternatives left.
struct Frame {
    /// Kept blocks of the scope before this one.
    kept: usize,
    left: Vec<Side>,
    made: Option<Side>,
}

impl<'p> Search<'p> {
    fn new(plan: &'p Plan<'p>, exact: bool) -> Self {
        let inner = [0, 1].map(|side| {
            plan.inner[side].as_deref().map(|plan| {
                Box::new(InnerSearch {
                    plan,
                    search: Search::new(&plan.plan, exact),
                    open: vec![0; plan.places.len()],
                    unfinished: vec![0; plan.touched.len()],
                })
            })
        });
        let cells = vec![Cell::Padding; plan.spec.tensors()[0].size()];
        Self { plan, exact, cells, kept: Bits::zeros(plan.spec.blocks()), inner }
    }

    /// Decides all classes; the error names the first scope of the class at fault.
    fn choice(&mut self, left: &mut u64) -> Result<Choice, (usize, Failure)> {
        for class in 0..self.plan.classes.len() {
            let first = self.plan.classes.get(class)[0] as usize;
            self.class(class, left).map_err(|failure| (first, failure))?;
        }
        let mut inner = [None, None];
        for (inner, search) in inner.iter_mut().zip(&mut self.inner) {
            let Some(search) = search else { continue };
            *inner = Some(search.search.choice(left)?);
        }
        Ok(Choice::from_levels(self.kept.clone(), inner))
    }

    fn held(&self, scope: usize, block: usize) -> Held {
        let mut held = Held { set: 0, real: 0 };
        for element in self.plan.spec.elements(scope, block) {
            let cell = self.cells[element.offset];
            held.set += usize::from(cell == Cell::Set);
            held.real += usize::from(cell != Cell::Padding);
        }
        held
    }

    /// Decides the blocks of one class.
    fn class(&mut self, class: usize, left: &mut u64) -> Result<(), Failure> {
        if !self.plan.spec.has_levels() {
            let plan = self.plan;
            return plan.classes.get(class).iter().try_for_each(|&s| self.scope(s as usize, left));
        }
        self.reset(class);
        let plan = self.plan;
        let (scopes, count) = (plan.classes.get(class), plan.spec.blocks_per_scope());
        let mut frames: Vec<Frame> = Vec::with_capacity(scopes.len() * count);
        let mut failed: HashSet<Vec<u32>> = HashSet::new();
        let (mut branched, mut furthest): (bool, Option<(usize, Breach)>) = (false, None);
        'next: while frames.len() < scopes.len() * count {
            let at = frames.len();
            let (scope, block) = (scopes[at / count] as usize, at % count);
            let kept = match frames.last() {
                Some(last) if block > 0 => last.kept + usize::from(last.made == Some(Side::Kept)),
                _ => 0,
            };
            let options = self.options(scope, block, kept, left)?;
            branched |= options.len() > 1;
            frames.push(Frame { kept, left: options, made: None });
            // Tries the alternatives of the last decision, then of those before it.
            while let Some(at) = frames.len().checked_sub(1) {
                let frame = &mut frames[at];
                let (scope, block) = (scopes[at / count] as usize, at % count);
                let places = (frame.kept, block - frame.kept);
                if let Some(side) = frame.made.take() {
                    self.withdraw(side, scope, side.pick(places.0, places.1));
                }
                let Some(side) = frame.left.pop() else {
                    frames.pop();
                    if branched && failed.len() < MAX_FAILED {
                        failed.insert(self.state(scopes, &frames, left)?);
                    }
                    continue;
                };
                let place = side.pick(places.0, places.1);
                match self.assign(side, scope, block, place, left) {
                    Ok(()) => {
                        frame.made = Some(side);
                        if failed.is_empty()
                            || !failed.contains(&self.state(scopes, &frames, left)?)
                        {
                            continue 'next;
                        }
                    }
                    Err(Failure::GaveUp) => return Err(Failure::GaveUp),
                    Err(Failure::Breach(breach)) => {
                        if furthest.as_ref().is_none_or(|(furthest, _)| *furthest < at) {
                            let block = plan.spec.block_index(scope, block).1;
                            let breach = Box::new(breach);
                            let inside =
                                Breach::Inside { side, scope, block, chosen: branched, breach };
                            furthest = Some((at, inside));
                        }
                    }
                }
            }
            return Err(self.breach(scopes, furthest.map(|(_, breach)| breach)));
        }
        for (at, frame) in frames.iter().enumerate() {
            let block = scopes[at / count] as usize * count + at % count;
            self.kept.set(block, frame.made == Some(Side::Kept));
        }
        Ok(())
    }

    /// Checks one scope of a level without levels inside, and keeps the blocks that are set,
    /// then the first others.
    fn scope(&mut self, scope: usize, left: &mut u64) -> Result<(), Failure> {
        let (spec, count) = (self.plan.spec, self.plan.spec.blocks_per_scope());
        let (mut set, mut empty, mut padding) = (Vec::new(), Vec::new(), Vec::new());
        for block in 0..count {
            let held = self.held(scope, block);
            spend(left, held.real as u64 + 1)?;
            if self.exact && held.set != 0 && held.set != held.real {
                let (tensor, block) = spec.block_index(scope, block);
                let (kept, size) = (held.set, held.real);
                return Err(Failure::Breach(Breach::Split { scope, tensor, block, kept, size }));
            }
            let list = match held {
                Held { set: 1.., .. } => &mut set,
                Held { real: 0, .. } => &mut padding,
                _ => &mut empty,
            };
            list.push(block);
        }
        let expected = spec.keep().min(set.len() + empty.len());
        if set.len() > expected || (self.exact && set.len() < expected) {
            let found = set.len();
            return Err(Failure::Breach(Breach::Count { scope, expected, found }));
        }
        (0..count).for_each(|block| self.kept.set(scope * count + block, false));
        for block in [set, empty, padding].concat().into_iter().take(spec.keep()) {
            self.kept.set(scope * count + block, true);
        }
        Ok(())
    }

    /// The sides to which a block can go, the likelier last.
    fn options(
        &self,
        scope: usize,
        block: usize,
        kept: usize,
        left: &mut u64,
    ) -> Result<Vec<Side>, Failure> {
        let spec = self.plan.spec;
        let (count, keep) = (spec.blocks_per_scope(), spec.keep());
        let held = self.held(scope, block);
        spend(left, held.real as u64 + 1)?;
        let mut may_keep = kept < keep;
        let mut may_drop = block - kept < count - keep;
        if held.real == 0 {
            // Padding is kept only after all other blocks.
            let real = (0..count).filter(|&b| self.held(scope, b).real > 0).count();
            may_keep &= keep > real;
        }
        may_keep &= spec.then().is_some() || !self.exact || held.set == held.real;
        may_drop &= spec.otherwise().is_some() || held.set == 0;
        let density = |side: Side| match spec.level(side) {
            Some(level) => level.spec().density(),
            None => side.pick(1.0, 0.0),
        };
        let middle = 0.5 * (density(Side::Kept) + density(Side::Dropped));
        let likely_kept = held.set as f64 >= middle * held.real as f64;
        let mut options: Vec<Side> = Vec::with_capacity(2);
        options.extend(may_drop.then_some(Side::Dropped));
        options.extend(may_keep.then_some(Side::Kept));
        if !likely_kept {
            options.reverse();
        }
        Ok(options)
    }

    /// Empties the places of a class.
    fn reset(&mut self, class: usize) {
        for inner in self.inner.iter_mut().flatten() {
            let count = inner.plan.level.blocks();
            for &scope in self.plan.classes.get(class) {
                for place in scope as usize * count..(scope as usize + 1) * count {
                    let touched = inner.plan.touched.get(place);
                    inner.unfinished[place] = touched.len() as u32;
                    for &class in touched {
                        inner.open[class as usize] =
                            inner.plan.places.get(class as usize).len() as u32;
                    }
                }
            }
        }
    }

    /// Puts a block in a place of a side, and checks the inner classes that are then
    /// complete; undone if one of them fails.
    fn assign(
        &mut self,
        side: Side,
        scope: usize,
        block: usize,
        place: usize,
        left: &mut u64,
    ) -> Result<(), Failure> {
        let (cells, spec) = (&self.cells, self.plan.spec);
        let Some(inner) = &mut self.inner[side as usize] else { return Ok(()) };
        let level = inner.plan.level;
        let filled = &mut inner.search.cells;
        level.visit_block(spec, scope, block, place, |at, from| {
            filled[at] = from.map_or(Cell::Padding, |from| cells[from]);
        });
        let place = scope * level.blocks() + place;
        let touched = inner.plan.touched.get(place);
        touched.iter().for_each(|&class| inner.open[class as usize] -= 1);
        let complete = |inner: &InnerSearch<'_>, class: u32| inner.open[class as usize] == 0;
        let mut outcome = Ok(());
        for &class in touched {
            if complete(inner, class) && outcome.is_ok() {
                outcome = inner.search.class(class as usize, left);
            }
        }
        for &class in touched {
            if !complete(inner, class) {
                continue;
            }
            let places = inner.plan.places.get(class as usize);
            places.iter().for_each(|&place| inner.unfinished[place as usize] -= 1);
        }
        if outcome.is_err() {
            let place = place % level.blocks();
            self.withdraw(side, scope, place);
        }
        outcome
    }

    /// Empties a place of a side.
    fn withdraw(&mut self, side: Side, scope: usize, place: usize) {
        let Some(inner) = &mut self.inner[side as usize] else { return };
        let place = scope * inner.plan.level.blocks() + place;
        for &class in inner.plan.touched.get(place) {
            if inner.open[class as usize] == 0 {
                let places = inner.plan.places.get(class as usize);
                places.iter().for_each(|&place| inner.unfinished[place as usize] += 1);
            }
            inner.open[class as usize] += 1;
        }
    }

    /// All that the remaining decisions depend on: how many there are, the kept blocks of the
    /// scope, and the decisions whose inner classes are not complete.
    fn state(&self, scopes: &[u32], frames: &[Frame], left: &mut u64) -> Result<Vec<u32>, Failure> {
        spend(left, frames.len() as u64 + 1)?;
        let count = self.plan.spec.blocks_per_scope();
        let kept = frames.last().map_or(0, |last| match frames.len() % count {
            0 => 0,
            _ => last.kept + usize::from(last.made == Some(Side::Kept)),
        });
        let mut state = vec![frames.len() as u32, kept as u32];
        for (at, frame) in frames.iter().enumerate() {
            let Some(side) = frame.made else { continue };
            let Some(inner) = &self.inner[side as usize] else { continue };
            let place = side.pick(frame.kept, at % count - frame.kept);
            let scope = scopes[at / count] as usize;
            if inner.unfinished[scope * inner.plan.level.blocks() + place] > 0 {
                state.push(2 * at as u32 + side as u32);
            }
        }
        Ok(state)
    }

    /// The breach of a class without a choice.
    fn breach(&self, scopes: &[u32], furthest: Option<Breach>) -> Failure {
        let (spec, expected) = (self.plan.spec, self.plan.spec.keep());
        let set = |scope: usize| {
            let blocks = 0..spec.blocks_per_scope();
            blocks.filter(|&block| self.held(scope, block).set > 0).count()
        };
        let mut scopes = scopes.iter().map(|&scope| (scope as usize, set(scope as usize)));
        let first = scopes.clone().next().unwrap_or((0, 0));
        let over = scopes.find(|(_, found)| *found > expected && spec.otherwise().is_none());
        Failure::Breach(match (over, furthest) {
            (Some((scope, found)), _) => Breach::Count { scope, expected, found },
            (None, Some(breach)) => breach,
            (None, None) => Breach::Count { scope: first.0, expected, found: first.1 },
        })
    }
}

fn spend(left: &mut u64, visits: u64) -> Result<(), Failure> {
    *left = left.checked_sub(visits).ok_or(Failure::GaveUp)?;
    Ok(())
}
