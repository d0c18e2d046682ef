//! Random patterns, drawn from a list of numbers so that a failing case shrinks,
//! and written as text.

use crate::twin::{Domain, Part, View, index, permuted, row_major};

/// A stream of choices; zeros once it has run out.
pub struct Choices<'a> {
    numbers: &'a [u16],
}

impl<'a> Choices<'a> {
    pub fn new(numbers: &'a [u16]) -> Self {
        Self { numbers }
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        let (first, rest) = self.numbers.split_first().unwrap_or((&0, &[]));
        self.numbers = rest;
        usize::from(*first) % n.max(1)
    }

    /// True one time in `n`; never once the stream has run out.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == n - 1
    }

    fn divisor(&mut self, n: usize) -> usize {
        let divisors: Vec<usize> = (1..=n).filter(|&d| n.is_multiple_of(d)).collect();
        divisors[self.below(divisors.len())]
    }

    /// `n` as a product of one to three factors.
    fn factors(&mut self, n: usize) -> Vec<usize> {
        let first = self.divisor(n);
        match self.below(4) {
            0 | 1 => vec![n],
            2 => vec![n / first, first],
            _ => {
                let second = self.divisor(first);
                vec![n / first, first / second, second]
            }
        }
    }

    pub fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut perm: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            let j = i - self.below(i + 1);
            perm.swap(i, j);
        }
        perm
    }
}

/// A pattern over one or more tensors, with what the coupling adds.
#[derive(Clone, Debug)]
pub struct Case {
    pub kind: Kind,
    pub parts: Vec<Part>,
    /// Blocks of a scope along the common grid; unused for coupled scopes.
    pub tile: Vec<usize>,
    pub blocks_per_scope: usize,
    pub keep: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    One,
    Blocks,
    Scopes,
}

const NAMES: [&str; 4] = ["q", "kk", "v_", "o2"];

impl Case {
    pub fn shapes(&self) -> Vec<(&'static str, &[usize])> {
        NAMES.iter().zip(&self.parts).map(|(&name, part)| (name, part.dims.as_slice())).collect()
    }

    /// One way of writing it.
    pub fn text(&self, c: &mut Choices<'_>) -> String {
        let keep = match c.below(3) {
            0 if self.keep > 0 && (self.keep * 100).is_multiple_of(self.blocks_per_scope) => {
                format!("{}%", self.keep * 100 / self.blocks_per_scope)
            }
            1 if self.keep == self.blocks_per_scope => "_".to_string(),
            _ => self.keep.to_string(),
        };
        let gap = |c: &mut Choices<'_>| [" ", "  ", " ; ", "\n", " # note\n", ";"][c.below(6)];
        match self.kind {
            Kind::One => {
                let part = &self.parts[0];
                let mut clauses = part_clauses(part, c);
                clauses.extend(tile_clause("scope", &self.tile, &part.grid(), true, c));
                clauses.push(format!("keep {keep}"));
                let mut text = String::new();
                for clause in clauses {
                    text += &clause;
                    text += gap(c);
                }
                text
            }
            Kind::Blocks | Kind::Scopes => {
                let members: Vec<String> = self
                    .parts
                    .iter()
                    .zip(NAMES)
                    .map(|(part, name)| {
                        let mut clauses = part_clauses(part, c);
                        if self.kind == Kind::Scopes {
                            clauses.extend(tile_clause(
                                "scope",
                                &part.scope,
                                &part.grid(),
                                true,
                                c,
                            ));
                        }
                        let identity = part.perm.iter().copied().eq(0..part.perm.len());
                        let perm = match identity && c.below(2) == 0 {
                            true => String::new(),
                            false => format!(" perm {}", tuple(&part.perm)),
                        };
                        format!("{name}{perm}: {}", clauses.join(gap(c)))
                    })
                    .collect();
                let word = if self.kind == Kind::Blocks { "blocks" } else { "scopes" };
                let scope = match self.kind {
                    Kind::Blocks => {
                        let common = permuted(&self.parts[0].grid(), &self.parts[0].perm);
                        tile_clause("scope", &self.tile, &common, true, c).unwrap_or_default()
                    }
                    _ => String::new(),
                };
                format!("{word} {} {scope} keep {keep}", members.join(" & "))
            }
        }
    }
}

pub fn tuple(values: &[usize]) -> String {
    let values: Vec<_> = values.iter().map(ToString::to_string).collect();
    format!("({})", values.join(","))
}

/// `word (..)`, with `_` for whole axes here and there, trailing ones dropped if
/// `open`; nothing if it may be left out.
fn tile_clause(
    word: &str,
    tile: &[usize],
    space: &[usize],
    open: bool,
    c: &mut Choices<'_>,
) -> Option<String> {
    let default = if open { tile == space } else { tile.iter().all(|&t| t == 1) };
    if default && c.below(2) == 0 {
        return None;
    }
    let mut items: Vec<String> = tile
        .iter()
        .zip(space)
        .map(|(&t, &s)| match c.below(3) {
            1 if t == s => "_".to_string(),
            2 if s % t == 0 && s > 1 => format!("_/{}", s / t),
            _ => t.to_string(),
        })
        .collect();
    while open && items.len() > 1 && tile[items.len() - 1] == space[items.len() - 1] {
        if c.below(2) == 0 {
            break;
        }
        items.pop();
    }
    let comma = if c.one_in(8) { "," } else { "" };
    Some(format!("{word} ({}{comma})", items.join(",")))
}

fn part_clauses(part: &Part, c: &mut Choices<'_>) -> Vec<String> {
    let mut clauses = Vec::new();
    if c.one_in(4) {
        let names: Vec<_> = (0..part.dims.len()).map(|axis| format!("N{axis}")).collect();
        clauses.push(format!("on ({})", names.join(",")));
    }
    if !matches!(part.domain, Domain::Whole) {
        clauses.push(format!("in {}", domain_text(&part.domain)));
    }
    if let Some(pad) = &part.pad {
        clauses.push(format!("pad {}", tuple(pad)));
    }
    match &part.view {
        View::Own => {}
        View::Axes { parts, order } => clauses.push(axes_text(parts, order, c)),
        View::Layout { shape, stride } => {
            let bare = *stride == row_major(shape) && c.below(2) == 0;
            let stride = if bare { String::new() } else { format!(":{}", tuple(stride)) };
            clauses.push(format!("view {}{stride}", tuple(shape)));
        }
    }
    clauses.extend(tile_clause("block", &part.block, &part.viewed().0, false, c));
    clauses
}

fn axes_text(parts: &[Vec<usize>], order: &[usize], c: &mut Choices<'_>) -> String {
    let mut names = Vec::new();
    let mut left = Vec::new();
    let mut sizes = Vec::new();
    for group in parts {
        let mine: Vec<String> = (0..group.len())
            .map(|i| char::from(b'a' + (names.len() + i) as u8).to_string())
            .collect();
        let open = c.below(group.len() + 1);
        for (i, (name, size)) in mine.iter().zip(group).enumerate() {
            if i != open {
                sizes.push(format!("{name}={size}"));
            }
        }
        left.push(if mine.len() == 1 && c.below(2) == 0 {
            mine[0].clone()
        } else {
            format!("({})", mine.join(" "))
        });
        names.extend(mine);
    }
    let right: Vec<_> = order.iter().map(|&part| names[part].clone()).collect();
    let sizes = if sizes.is_empty() { String::new() } else { format!(", {}", sizes.join(" ")) };
    format!("view {} -> {}{sizes}", left.join(" "), right.join(" "))
}

pub fn domain_text(domain: &Domain) -> String {
    match domain {
        Domain::Whole => unreachable!("a whole domain is not written"),
        Domain::Box { offset, extent } => format!("{}+{}", tuple(offset), tuple(extent)),
        Domain::Layout { shape, stride, start } => {
            let start = if *start == 0 { String::new() } else { format!("@{start}") };
            format!("{}:{}{start}", tuple(shape), tuple(stride))
        }
        Domain::Union(parts) => parts
            .iter()
            .map(|part| match part {
                Domain::Not(_) => format!("({})", domain_text(part)),
                _ => domain_text(part),
            })
            .collect::<Vec<_>>()
            .join(" | "),
        Domain::Not(inner) => match **inner {
            Domain::Union(_) => format!("~({})", domain_text(inner)),
            _ => format!("~{}", domain_text(inner)),
        },
    }
}

fn dims(c: &mut Choices<'_>) -> Vec<usize> {
    const EXTENTS: [usize; 7] = [4, 2, 6, 8, 1, 3, 12];
    let mut dims = Vec::new();
    let mut size = 1;
    for _ in 0..[2, 1, 3, 4][c.below(4)] {
        let extent = EXTENTS[c.below(EXTENTS.len())];
        if size * extent <= 300 {
            size *= extent;
            dims.push(extent);
        }
    }
    if dims.is_empty() { vec![4] } else { dims }
}

fn simple_domain(dims: &[usize], c: &mut Choices<'_>) -> Domain {
    let offset: Vec<usize> = dims.iter().map(|&d| c.below(d)).collect();
    let extent: Vec<usize> =
        dims.iter().zip(&offset).map(|(d, o)| d - o - c.below(d - o)).collect();
    if c.below(2) == 0 {
        return Domain::Box { offset, extent };
    }
    // A layout: the box's axes, perhaps with every second entry only, split and turned.
    let storage = row_major(dims);
    let (mut shape, mut stride) = (Vec::new(), Vec::new());
    for axis in 0..dims.len() {
        let step = if c.one_in(3) { 2 } else { 1 };
        let parts = c.factors(extent[axis].div_ceil(step));
        for (i, &part) in parts.iter().enumerate() {
            shape.push(part);
            stride.push(storage[axis] * step * parts[i + 1..].iter().product::<usize>());
        }
    }
    let turn = c.permutation(shape.len());
    let start = offset.iter().zip(&storage).map(|(o, d)| o * d).sum();
    Domain::Layout { shape: permuted(&shape, &turn), stride: permuted(&stride, &turn), start }
}

pub fn domain(dims: &[usize], c: &mut Choices<'_>) -> Domain {
    let some = |c: &mut Choices<'_>| -> Domain {
        let parts = (0..2 + c.below(2)).map(|_| simple_domain(dims, c)).collect();
        Domain::Union(parts)
    };
    let domain = match c.below(8) {
        0..=2 => Domain::Whole,
        3 | 4 => simple_domain(dims, c),
        5 => some(c),
        6 => Domain::Not(Box::new(simple_domain(dims, c))),
        _ => match c.below(2) {
            0 => Domain::Not(Box::new(some(c))),
            _ => Domain::Union(vec![
                Domain::Not(Box::new(simple_domain(dims, c))),
                simple_domain(dims, c),
            ]),
        },
    };
    if domain.set(dims).is_empty() { Domain::Whole } else { domain }
}

fn view(part: &Part, c: &mut Choices<'_>) -> View {
    let kind = c.below(3);
    if kind == 0 {
        return View::Own;
    }
    let padded = part.padded();
    let parts: Vec<Vec<usize>> = padded.iter().map(|&extent| c.factors(extent)).collect();
    let count = parts.iter().map(Vec::len).sum();
    let order = c.permutation(count);
    let axes = View::Axes { parts: parts.clone(), order: order.clone() };
    if kind == 1 {
        return axes;
    }
    // The same with strides, where there are some.
    let (real, offsets) = part.domain.positions(&part.dims);
    let own: Vec<usize> = match &part.domain {
        _ if real != padded => row_major(&padded),
        Domain::Whole | Domain::Box { .. } => row_major(&part.dims),
        Domain::Layout { stride, .. } => stride.clone(),
        _ if offsets.windows(2).all(|pair| pair[0] + 1 == pair[1]) => vec![1],
        _ => return axes,
    };
    let (shape, stride): (Vec<usize>, Vec<usize>) = parts
        .iter()
        .zip(&own)
        .flat_map(|(group, &step)| {
            (0..group.len())
                .map(move |i| (group[i], step * group[i + 1..].iter().product::<usize>()))
        })
        .unzip();
    View::Layout { shape: permuted(&shape, &order), stride: permuted(&stride, &order) }
}

/// A pattern over one tensor.
pub fn one(c: &mut Choices<'_>) -> Case {
    let dims = dims(c);
    let domain = domain(&dims, c);
    let mut part = Part {
        domain,
        dims,
        pad: None,
        view: View::Own,
        block: vec![],
        perm: vec![],
        scope: vec![],
    };
    if c.one_in(4) {
        let axes = part.padded().len();
        part.pad = Some((0..axes).map(|_| 1 + c.below(4)).collect());
    }
    part.view = view(&part, c);
    part.block = part.viewed().0.iter().map(|&extent| c.divisor(extent)).collect();
    part.perm = (0..part.block.len()).collect();
    let tile: Vec<usize> = part.grid().iter().map(|&count| c.divisor(count)).collect();
    let blocks_per_scope = tile.iter().product();
    let keep = c.below(blocks_per_scope + 1);
    Case { kind: Kind::One, parts: vec![part], tile, blocks_per_scope, keep }
}

/// A tensor whose grid of blocks is `grid`.
fn with_grid(grid: &[usize], perm: Vec<usize>, c: &mut Choices<'_>) -> Part {
    let block: Vec<usize> = grid.iter().map(|_| 1 + c.below(2)).collect();
    let shape: Vec<usize> = grid.iter().zip(&block).map(|(g, b)| g * b).collect();
    // The tensor has the view's axes in another order.
    let turn = c.permutation(shape.len());
    let dims = permuted(&shape, &turn);
    let mut order = vec![0; turn.len()];
    for (dim, &axis) in turn.iter().enumerate() {
        order[axis] = dim;
    }
    let view = match c.below(2) {
        0 => View::Axes { parts: dims.iter().map(|&d| vec![d]).collect(), order },
        _ => View::Layout { stride: permuted(&row_major(&dims), &order), shape },
    };
    Part { dims, domain: Domain::Whole, pad: None, view, block, perm, scope: vec![] }
}

fn unpermuted(common: &[usize], perm: &[usize]) -> Vec<usize> {
    let mut own = vec![0; common.len()];
    for (axis, &to) in perm.iter().enumerate() {
        own[to] = common[axis];
    }
    own
}

/// A coupling of up to three tensors.
pub fn coupling(kind: Kind, c: &mut Choices<'_>) -> Case {
    let rank = 1 + c.below(3);
    let common: Vec<usize> = (0..rank).map(|_| 1 + c.below(4)).collect();
    let members = 1 + c.below(3);
    let mut parts = Vec::new();
    for _ in 0..members {
        let perm = c.permutation(rank);
        let own = unpermuted(&common, &perm);
        match kind {
            Kind::Scopes => {
                let scope: Vec<usize> = own.iter().map(|_| 1 + c.below(2)).collect();
                let grid: Vec<usize> = own.iter().zip(&scope).map(|(o, s)| o * s).collect();
                parts.push(Part { scope, ..with_grid(&grid, perm, c) });
            }
            _ => parts.push(with_grid(&own, perm, c)),
        }
    }
    let tile: Vec<usize> = common.iter().map(|&count| c.divisor(count)).collect();
    let blocks_per_scope = match kind {
        Kind::Scopes => parts.iter().map(|part| part.scope.iter().product::<usize>()).sum(),
        _ => tile.iter().product(),
    };
    let keep = c.below(blocks_per_scope + 1);
    Case { kind, parts, tile, blocks_per_scope, keep }
}

/// Any pattern.
pub fn any(c: &mut Choices<'_>) -> Case {
    match c.below(4) {
        0 | 1 => one(c),
        2 => coupling(Kind::Blocks, c),
        _ => coupling(Kind::Scopes, c),
    }
}

/// Another spelling of a pattern over one tensor: the view's axes turned, and
/// each split at the bounds of blocks and scopes, written with strides or with
/// an arrow.
pub fn respelled(case: &Case, c: &mut Choices<'_>) -> Option<Case> {
    let part = &case.parts[0];
    let (parts, order) = match &part.view {
        View::Own => {
            let padded = part.padded();
            ((0..padded.len()).map(|i| vec![padded[i]]).collect(), (0..padded.len()).collect())
        }
        View::Axes { parts, order } => (parts.clone(), order.clone()),
        View::Layout { .. } => return None,
    };
    let sizes: Vec<usize> = parts.iter().flatten().copied().collect();
    let mut axis_of = vec![0; sizes.len()];
    for (axis, &p) in order.iter().enumerate() {
        axis_of[p] = axis;
    }
    // Each part becomes (scopes, blocks of a scope, entries of a block), or stays.
    let mut new_parts = Vec::new();
    let mut pieces: Vec<(usize, usize, usize)> = Vec::new(); // extent, block, tile
    let mut p = 0;
    for group in &parts {
        let mut new_group = Vec::new();
        for &extent in group {
            let (b, t) = (part.block[axis_of[p]], case.tile[axis_of[p]]);
            if c.below(2) == 0 {
                pieces.extend([(extent / (b * t), 1, 1), (t, 1, t), (b, b, 1)]);
                new_group.extend([extent / (b * t), t, b]);
            } else {
                pieces.push((extent, b, t));
                new_group.push(extent);
            }
            p += 1;
        }
        new_parts.push(new_group);
    }
    let order = c.permutation(pieces.len());
    let block = order.iter().map(|&i| pieces[i].1).collect();
    let tile = order.iter().map(|&i| pieces[i].2).collect();
    let mut new = Part { view: View::Axes { parts: new_parts, order }, block, ..part.clone() };
    new.perm = (0..new.block.len()).collect();
    if new.perm.len() > 20 {
        return None;
    }
    let direct = matches!(part.domain, Domain::Whole | Domain::Box { .. }) && part.pad.is_none();
    if direct && c.below(2) == 0 {
        let (shape, at) = new.viewed();
        let first = at[0].unwrap();
        let stride = (0..shape.len())
            .map(|axis| {
                let mut unit = vec![0; shape.len()];
                unit[axis] = 1;
                match shape[axis] {
                    1 => 0,
                    _ => at[index(&unit, &shape)].unwrap() - first,
                }
            })
            .collect();
        new.view = View::Layout { shape, stride };
    }
    Some(Case { parts: vec![new], tile, ..case.clone() })
}
