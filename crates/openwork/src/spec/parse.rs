//! Parses patterns. The grammar is in `docs/spec-language.md`; each function parses one of
//! its rules.

use super::error::SpecError;
use super::pattern::{
    Arg, At, Atom, Axes, Body, Call, Clauses, Couple, Decimal, Domain, Expr, Inner, Keep, Kind,
    Layout, Level, Member, Name, One, Operand, Tuple, View,
};
use std::collections::HashSet;

/// The longest text accepted: far beyond any pattern, and short enough to parse quickly.
const MAX_TEXT: usize = 1 << 16;
/// The deepest nesting of tuples, domains and levels.
const MAX_DEPTH: usize = 32;
/// The maximum number of names of dims or axes; no tensor or view has more.
const MAX_NAMES: usize = 32;
/// The maximum number of operands of a composition.
const MAX_OPERANDS: usize = 16;

/// Keywords, which cannot be names.
const KEYWORDS: &[&str] = &[
    "on", "in", "pad", "view", "block", "scope", "keep", "perm", "weight", "blocks", "scopes",
    "then", "else",
];

type Read<T> = Result<T, SpecError>;

/// Parses a whole pattern.
pub(crate) fn body(text: &str) -> Read<Body> {
    if text.len() > MAX_TEXT {
        let what = format!("a pattern of {} bytes is too long", text.len());
        return Err(SpecError::whole(what, format!("write at most {MAX_TEXT}")));
    }
    let mut parser = Parser { text, pos: 0, depth: 0 };
    let body = parser.pattern()?;
    parser.separators();
    if parser.pos < text.len() {
        let found = parser.found();
        return Err(parser.fail(
            format!("{found} does not belong here"),
            "expected a clause (on, in, pad, view, block, scope, keep), `then`, `else` or the end",
        ));
    }
    Ok(body)
}

/// Parses the clauses that a preset expands to.
pub(crate) fn expansion(text: &str) -> Read<Clauses> {
    single(text).map(|one| one.clauses)
}

/// Parses a spec of clauses without levels.
pub(crate) fn single(text: &str) -> Read<One> {
    match body(text)? {
        Body::Levels(level) if level.one.preset.is_none() && !level.has_inner() => Ok(level.one),
        _ => Err(SpecError::whole("a preset expands to clauses only", text)),
    }
}

struct Parser<'t> {
    text: &'t str,
    pos: usize,
    depth: usize,
}

impl<'t> Parser<'t> {
    fn rest(&self) -> &'t str {
        &self.text[self.pos..]
    }

    /// Skips white space and comments.
    fn skip(&mut self) {
        loop {
            let rest = self.rest();
            let trimmed = rest.trim_start();
            self.pos += rest.len() - trimmed.len();
            if !trimmed.starts_with('#') {
                return;
            }
            self.pos += trimmed.find('\n').unwrap_or(trimmed.len());
        }
    }

    /// Skips the separators between clauses.
    fn separators(&mut self) {
        self.skip();
        while self.eat(";") {
            self.skip();
        }
    }

    fn peek(&mut self) -> Option<char> {
        self.skip();
        self.rest().chars().next()
    }

    /// Consumes `token` if it is next.
    fn eat(&mut self, token: &str) -> bool {
        self.skip();
        let there = self.rest().starts_with(token);
        if there {
            self.pos += token.len();
        }
        there
    }

    fn expect(&mut self, token: &str, why: &str) -> Read<()> {
        if self.eat(token) {
            return Ok(());
        }
        let found = self.found();
        Err(self.fail(format!("expected `{token}`, found {found}"), why))
    }

    /// The next word, without consuming it.
    fn word(&mut self) -> Option<&'t str> {
        self.skip();
        let rest = self.rest();
        let is_start = |c: char| c.is_ascii_alphabetic() || c == '_';
        if !rest.starts_with(is_start) {
            return None;
        }
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        Some(&rest[..end])
    }

    /// The text at the current position, for an error.
    fn found(&mut self) -> String {
        if let Some(word) = self.word() {
            let short: String = word.chars().take(24).collect();
            return format!("`{short}`");
        }
        self.peek().map_or("the end".to_string(), |c| format!("`{c}`"))
    }

    fn fail(&mut self, what: impl Into<String>, detail: impl Into<String>) -> SpecError {
        self.skip();
        SpecError::at(self.text, self.pos, what, detail)
    }

    /// Runs `read` one level deeper.
    fn deeper<T>(&mut self, read: impl FnOnce(&mut Self) -> Read<T>) -> Read<T> {
        if self.depth == MAX_DEPTH {
            return Err(
                self.fail("this is nested too deeply", format!("at most {MAX_DEPTH} levels"))
            );
        }
        self.depth += 1;
        let value = read(self);
        self.depth -= 1;
        value
    }

    fn pattern(&mut self) -> Read<Body> {
        self.separators();
        let kind = match self.word() {
            Some("blocks") => Kind::Blocks,
            Some("scopes") => Kind::Scopes,
            _ => return self.levels(false).map(Body::Levels),
        };
        let couple = self.couple(kind)?;
        self.separators();
        if let Some(word @ ("then" | "else")) = self.word() {
            return Err(self.fail(
                format!("a coupling cannot be followed by `{word}`"),
                "only a spec over one tensor has levels",
            ));
        }
        Ok(Body::Couple(couple))
    }

    /// A spec with its levels. An `else` belongs to the nearest level before it that has a
    /// `then` and no `else` yet, or else to the nearest level; `claimed` says that a level
    /// outside has such a `then`.
    fn levels(&mut self, claimed: bool) -> Read<Level> {
        self.separators();
        if self.eat("(") {
            let level = self.deeper(|parser| parser.levels(false))?;
            self.separators();
            self.expect(")", "a spec in parentheses ends with `)`")?;
            return Ok(level);
        }
        let one = self.level()?;
        let mut level = Level { one, end: At(self.pos), then: None, otherwise: None };
        self.separators();
        if self.word() == Some("then") {
            level.then = Some(self.inner(true)?);
            self.separators();
        }
        if self.word() == Some("else") && (level.then.is_some() || !claimed) {
            level.otherwise = Some(self.inner(claimed)?);
        }
        Ok(level)
    }

    /// What follows `then` or `else`.
    fn inner(&mut self, claimed: bool) -> Read<Box<Inner>> {
        let at = At(self.pos);
        self.pos += "then".len();
        let level = self.deeper(|parser| parser.levels(claimed))?;
        Ok(Box::new(Inner { level, at }))
    }

    /// One level: a preset, clauses or both.
    fn level(&mut self) -> Read<One> {
        self.separators();
        if let Some(word @ ("blocks" | "scopes")) = self.word() {
            return Err(self.fail(
                format!("a coupling (`{word}`) cannot be a level of a spec"),
                "only specs over one tensor may follow `then` and `else`",
            ));
        }
        let one = self.one(None)?;
        if one == One::default() {
            let found = self.found();
            return Err(self.fail(
                format!("expected a pattern, found {found}"),
                "for example `2:4`, `block(16,16)` or `scope (1,4) keep 2`; see `openwork presets`",
            ));
        }
        Ok(one)
    }

    fn couple(&mut self, kind: Kind) -> Read<Couple> {
        self.pos += "blocks".len();
        let mut members: Vec<Member> = Vec::new();
        let mut names = HashSet::new();
        loop {
            let member = self.member(kind)?;
            if !names.insert(member.name.clone()) {
                let what = format!("`{}` is named twice", member.name);
                return Err(SpecError::at(self.text, member.at.0, what, "list each tensor once"));
            }
            members.push(member);
            if !self.eat("&") {
                break;
            }
        }
        let mut couple = Couple { kind, members, scope: None, keep: None };
        loop {
            self.separators();
            match (self.word(), kind) {
                (Some("scope"), Kind::Blocks) if couple.scope.is_none() => {
                    self.pos += "scope".len();
                    couple.scope = Some(self.tuple()?);
                }
                (Some("keep"), _) if couple.keep.is_none() => {
                    self.pos += "keep".len();
                    couple.keep = Some(self.keep()?);
                }
                (Some("scope"), Kind::Scopes) => {
                    return Err(self.fail(
                        "coupled scopes have no scope in common",
                        "each member gives its own: `scopes a: .. scope (1,4) & b: .. keep 2`",
                    ));
                }
                (Some(word @ ("scope" | "keep")), _) => {
                    return Err(self.fail(format!("`{word}` is given twice"), "give it once"));
                }
                _ if self.peek() == Some('&') => {
                    return Err(self.fail(
                        "the members of a coupling end before its own clauses",
                        "put `scope` and `keep` after the last member",
                    ));
                }
                _ => return Ok(couple),
            }
        }
    }

    fn member(&mut self, kind: Kind) -> Read<Member> {
        self.skip();
        let at = At(self.pos);
        let name = self.name("a tensor's name")?;
        let perm = if self.word() == Some("perm") {
            self.pos += "perm".len();
            self.skip();
            let at = At(self.pos);
            Some((self.perm()?, at))
        } else {
            None
        };
        let weight = if self.word() == Some("weight") {
            self.pos += "weight".len();
            Some(self.weight()?)
        } else {
            None
        };
        self.expect(":", "a member is written `name: spec` or `name perm (1,0) weight 0.5: spec`")?;
        let one = self.one(Some(kind))?;
        Ok(Member { name, perm, weight, one, at })
    }

    fn weight(&mut self) -> Read<Decimal> {
        self.skip();
        match decimal(self.rest()) {
            Some((digits, scale, len)) => {
                self.pos += len;
                Ok(Decimal { digits, scale })
            }
            None => Err(self.fail("a weight is a number of at least 0", "write `weight 0.5`")),
        }
    }

    fn perm(&mut self) -> Read<Vec<usize>> {
        let axis = |parser: &mut Self| Ok(usize::try_from(parser.number()?).unwrap_or(usize::MAX));
        if !self.eat("(") {
            return Ok(vec![axis(self)?]);
        }
        let mut perm = Vec::new();
        while perm.is_empty() || !self.eat(")") {
            perm.push(axis(self)?);
            if !self.eat(",") {
                self.expect(")", "a permutation is written `perm (1,0,2)`")?;
                break;
            }
        }
        Ok(perm)
    }

    /// A spec over one tensor; inside a coupling it ends where the coupling's own clauses
    /// start.
    fn one(&mut self, inside: Option<Kind>) -> Read<One> {
        self.separators();
        let start = self.pos;
        let preset = match self.peek() {
            Some(c) if c.is_ascii_digit() => Some(self.ratio()?),
            _ => match self.word() {
                Some(word) if !KEYWORDS.contains(&word) && word != "_" => Some(self.call()?),
                // `block(16,16)` is the preset where it is the whole pattern; with a gap, or
                // with a clause beside it, it is the clause.
                Some("block") if inside.is_none() && self.rest().starts_with("block(") => {
                    let call = self.call();
                    self.separators();
                    match call {
                        Ok(call) if self.level_ends() && call.has_args() => Some(call),
                        _ => {
                            self.pos = start;
                            None
                        }
                    }
                }
                _ => None,
            },
        };
        self.clauses(inside, preset)
    }

    /// Whether no clause follows in this level.
    fn level_ends(&mut self) -> bool {
        self.pos == self.text.len()
            || self.peek() == Some(')')
            || matches!(self.word(), Some("then" | "else"))
    }

    fn clauses(&mut self, inside: Option<Kind>, preset: Option<Call>) -> Read<One> {
        let mut clauses = Clauses::default();
        loop {
            self.separators();
            let ends = |word: &str| match inside {
                None => false,
                Some(Kind::Blocks) => word == "scope" || word == "keep",
                Some(Kind::Scopes) => word == "keep",
            };
            let Some(word) = self.word() else { break };
            let given = match word {
                _ if ends(word) => break,
                "on" => clauses.on.is_some(),
                "in" => clauses.domain.is_some(),
                "pad" => clauses.pad.is_some(),
                "view" => clauses.view.is_some(),
                "block" => clauses.block.is_some(),
                "scope" => clauses.scope.is_some(),
                "keep" => clauses.keep.is_some(),
                _ => break,
            };
            if given {
                return Err(self.fail(format!("`{word}` is given twice"), "give it once"));
            }
            self.pos += word.len();
            match word {
                "on" => {
                    self.skip();
                    let at = At(self.pos);
                    clauses.on = Some((self.names()?, at));
                }
                "in" => clauses.domain = Some(self.domain()?),
                "pad" => clauses.pad = Some(self.tuple()?),
                "view" => clauses.view = Some(self.view()?),
                "block" => clauses.block = Some(self.tuple()?),
                "scope" => clauses.scope = Some(self.tuple()?),
                _ => clauses.keep = Some(self.keep()?),
            }
        }
        Ok(One { preset, clauses })
    }

    /// `N:M`, `N:MxB`, `N:M@D`.
    fn ratio(&mut self) -> Read<Call> {
        self.skip();
        let at = At(self.pos);
        let n = self.number()?;
        self.expect(
            ":",
            "a ratio is written `2:4`, 2 kept of 4; a spec by clauses starts with a word",
        )?;
        let m = self.number()?;
        let mut b = None;
        if self.rest().starts_with('x')
            && self.rest()[1..].starts_with(|c: char| c.is_ascii_digit())
        {
            self.pos += 1;
            b = Some(self.number()?);
        }
        let d = if self.eat("@") { Some(self.number()?) } else { None };
        Ok(Call { name: Name::Ratio { n, m, b, d }, at })
    }

    /// `name` or `name(args)`.
    fn call(&mut self) -> Read<Call> {
        self.skip();
        let at = At(self.pos);
        let word = match self.word() {
            Some("block") => {
                self.pos += "block".len();
                "block".to_string()
            }
            _ => self.name("a preset's name")?,
        };
        let mut args = Vec::new();
        if self.eat("(") {
            while !self.eat(")") {
                args.push(self.arg()?);
                if !self.eat(",") {
                    self.expect(")", "arguments are written `block(16,16)` or `head(h=16)`")?;
                    break;
                }
            }
        }
        Ok(Call { name: Name::Word { word, args }, at })
    }

    fn arg(&mut self) -> Read<Arg> {
        if let Some(word) = self.word() {
            let start = self.pos;
            self.pos += word.len();
            if self.eat("=") {
                return Ok(Arg::Named(word.to_string(), self.expr()?));
            }
            self.pos = start;
        }
        self.keep().map(Arg::Keep)
    }

    fn names(&mut self) -> Read<Vec<String>> {
        self.expect("(", "dims are named like `on (M,K)`")?;
        let mut names: Vec<String> = Vec::new();
        loop {
            self.skip();
            let at = self.pos;
            let name = self.name("a dim's name")?;
            if names.contains(&name) {
                return Err(SpecError::at(
                    self.text,
                    at,
                    format!("`{name}` names two dims"),
                    "give each its own name",
                ));
            }
            if names.len() == MAX_NAMES {
                return Err(SpecError::at(
                    self.text,
                    at,
                    "these are too many dims",
                    format!("at most {MAX_NAMES}"),
                ));
            }
            names.push(name);
            if !self.eat(",") {
                self.expect(")", "dims are named like `on (M,K)`")?;
                return Ok(names);
            }
            if self.eat(")") {
                return Ok(names);
            }
        }
    }

    fn name(&mut self, what: &str) -> Read<String> {
        match self.word() {
            Some(word) if !KEYWORDS.contains(&word) && word != "_" => {
                self.pos += word.len();
                Ok(word.to_string())
            }
            Some(word) if KEYWORDS.contains(&word) => Err(self
                .fail(format!("expected {what}, found the keyword `{word}`"), "use another name")),
            _ => {
                let found = self.found();
                Err(self.fail(
                    format!("expected {what}, found {found}"),
                    "a name is letters, digits and `_`",
                ))
            }
        }
    }

    fn domain(&mut self) -> Read<Domain> {
        let mut parts = Vec::new();
        loop {
            match self.domain_part()? {
                Domain::Union(inner) => parts.extend(inner),
                part => parts.push(part),
            }
            if !self.eat("|") {
                break;
            }
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Domain::Union(parts) })
    }

    fn domain_part(&mut self) -> Read<Domain> {
        if self.eat("~") {
            // One part only: `~a | b` is `(~a) | b`.
            let inner = self.deeper(Self::domain_part)?;
            return Ok(Domain::Complement(Box::new(inner)));
        }
        self.skip();
        let start = self.pos;
        match self.tuple() {
            Ok(tuple) => self.box_or_layout(tuple, At(start)),
            // `(A | B)`: the parentheses contain a domain, not a tuple.
            Err(error) if self.text[start..].starts_with('(') && self.depth < MAX_DEPTH => {
                let reached = self.pos;
                self.pos = start + 1;
                match self.deeper(Self::domain) {
                    Ok(domain) if self.eat(")") => Ok(domain),
                    // The alternative that got further gives the better error.
                    Err(inner) if self.pos > reached => Err(inner),
                    _ => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }

    fn box_or_layout(&mut self, tuple: Tuple, at: At) -> Read<Domain> {
        if self.eat("+") {
            let extent = self.tuple()?;
            let Tuple::List(items, _) = tuple else {
                return Err(SpecError::at(
                    self.text,
                    at.0,
                    "a box's offset is a tuple",
                    "write `(0,0)+(M,K)`: offset, then extent",
                ));
            };
            let mut offset = Vec::new();
            for item in items {
                match item {
                    Tuple::Leaf(expr) => offset.push(expr),
                    Tuple::List(_, at) => {
                        return Err(SpecError::at(
                            self.text,
                            at.0,
                            "a box's offset is flat",
                            "write `(0,0)+(M,K)`",
                        ));
                    }
                }
            }
            return Ok(Domain::Box { offset, extent, at });
        }
        let layout = self.layout_after(tuple, at)?;
        let start = if self.eat("@") { Some(self.expr()?) } else { None };
        Ok(Domain::Layout { layout, start, at })
    }

    fn view(&mut self) -> Read<View> {
        let mut view = View { first: self.operand()?, rest: Vec::new() };
        while self.word() == Some("o") {
            if view.rest.len() + 1 == MAX_OPERANDS {
                let limit = format!("at most {MAX_OPERANDS}");
                return Err(self.fail("the view composes too many layouts", limit));
            }
            self.pos += "o".len();
            self.skip();
            let at = At(self.pos);
            view.rest.push((self.operand()?, at));
        }
        Ok(view)
    }

    fn operand(&mut self) -> Read<Operand> {
        self.skip();
        let start = self.pos;
        if let Some(left) = self.groups() {
            return self.axes(left, At(start)).map(Operand::Axes);
        }
        self.pos = start;
        let tuple = self.tuple()?;
        self.layout_after(tuple, At(start)).map(Operand::Layout)
    }

    fn layout_after(&mut self, shape: Tuple, at: At) -> Read<Layout> {
        let stride = if self.eat(":") { Some(self.tuple()?) } else { None };
        Ok(Layout { shape, stride, at })
    }

    /// The left side of `m (g j i) -> ..`, including the arrow; `None` if this is not such a
    /// pattern.
    fn groups(&mut self) -> Option<Vec<Vec<(String, At)>>> {
        let mut groups = Vec::new();
        loop {
            if self.eat("->") {
                return Some(groups);
            }
            if self.eat("(") {
                let mut group = Vec::new();
                while !self.eat(")") {
                    self.skip();
                    let at = At(self.pos);
                    group.push((self.name("").ok()?, at));
                }
                groups.push(group);
            } else {
                self.skip();
                let at = At(self.pos);
                groups.push(vec![(self.name("").ok()?, at)]);
            }
        }
    }

    fn axes(&mut self, left: Vec<Vec<(String, At)>>, at: At) -> Read<Axes> {
        let mut right = Vec::new();
        while let Some(word) = self.word() {
            // `o` composes, unless it is an axis that is still missing here.
            let named = |axes: &[(String, At)]| axes.iter().any(|(name, _)| name == "o");
            let is_axis = left.iter().any(|group| named(group)) && !named(&right);
            if KEYWORDS.contains(&word) || (word == "o" && !is_axis) {
                break;
            }
            let at = At(self.pos);
            right.push((self.name("an axis")?, at));
        }
        let mut sizes = Vec::new();
        if self.eat(",") {
            loop {
                self.skip();
                let at = At(self.pos);
                let name = self.name("an axis, as in `j=2`")?;
                self.expect("=", "sizes are written `j=2 i=8`")?;
                sizes.push((name, self.expr()?, at));
                self.eat(",");
                match self.word() {
                    Some("o") if !self.rest()[1..].trim_start().starts_with('=') => break,
                    Some(word) if !KEYWORDS.contains(&word) => {}
                    _ => break,
                }
            }
        }
        let most = left.iter().map(Vec::len).sum::<usize>().max(left.len());
        if most.max(right.len()).max(sizes.len()) > MAX_NAMES {
            let limit = format!("at most {MAX_NAMES}");
            return Err(SpecError::at(self.text, at.0, "the view names too many axes", limit));
        }
        Ok(Axes { left, right, sizes, at })
    }

    fn keep(&mut self) -> Read<Keep> {
        self.skip();
        let at = At(self.pos);
        if let Some((digits, scale, len)) = decimal(self.rest()) {
            self.pos += len;
            if self.eat("%") {
                return Ok(Keep::Percent { digits, scale, at });
            }
            if scale > 0 {
                return Err(
                    self.fail("a count of blocks is a whole number", "write a share as `12.5%`")
                );
            }
            self.pos = at.0;
        }
        if self.word() == Some("all") {
            self.pos += "all".len();
            return Ok(Keep::All);
        }
        let expr = self.expr()?;
        Ok(if self.eat("%") { Keep::Share(expr) } else { Keep::Count(expr) })
    }

    fn tuple(&mut self) -> Read<Tuple> {
        self.skip();
        let at = At(self.pos);
        if !self.eat("(") {
            return self.expr().map(Tuple::Leaf);
        }
        self.deeper(|parser| {
            let mut items = Vec::new();
            loop {
                if !items.is_empty() && parser.eat(")") {
                    break;
                }
                items.push(parser.tuple()?);
                if !parser.eat(",") {
                    parser.expect(")", "a tuple is written `(1,4)`")?;
                    break;
                }
            }
            Ok(Tuple::List(items, at))
        })
    }

    fn expr(&mut self) -> Read<Expr> {
        self.skip();
        let at = At(self.pos);
        let first = self.atom()?;
        let mut rest = Vec::new();
        loop {
            if self.eat("*") {
                rest.push((true, self.atom()?));
            } else if self.eat("/") {
                rest.push((false, self.atom()?));
            } else {
                return Ok(Expr { first, rest, at });
            }
        }
    }

    fn atom(&mut self) -> Read<Atom> {
        match self.peek() {
            Some(c) if c.is_ascii_digit() => self.number().map(Atom::Int),
            Some('-') if !self.rest().starts_with("->") => Err(self.fail(
                "negative numbers have no meaning here",
                "extents, strides and counts are positive",
            )),
            _ => match self.word() {
                Some("_") => {
                    self.pos += 1;
                    Ok(Atom::Whole)
                }
                Some(word) if !KEYWORDS.contains(&word) => {
                    self.pos += word.len();
                    Ok(Atom::Name(word.to_string()))
                }
                _ => {
                    let found = self.found();
                    Err(self.fail(
                        format!("expected a number, a symbol or `_`, found {found}"),
                        "`_` means the whole dimension",
                    ))
                }
            },
        }
    }

    fn number(&mut self) -> Read<u64> {
        self.skip();
        let rest = self.rest();
        let len = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        if len == 0 {
            let found = self.found();
            return Err(self.fail(format!("expected a number, found {found}"), "digits only"));
        }
        match rest[..len].parse() {
            Ok(number) if number <= i64::MAX as u64 => {
                self.pos += len;
                Ok(number)
            }
            _ => Err(self.fail("this number is too large", format!("at most {}", i64::MAX))),
        }
    }
}

/// A decimal number at the start of `text`: digits without the point, digits
/// after it, and its length.
fn decimal(text: &str) -> Option<(u64, u32, usize)> {
    let end = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let whole = end(text);
    let part = text[whole..].strip_prefix('.').map_or(0, end);
    if whole == 0 || whole > 9 || part > 9 {
        return None;
    }
    let len = if part == 0 { whole } else { whole + 1 + part };
    let digits = text[..len].replace('.', "").parse().ok()?;
    Some((digits, part as u32, len))
}

#[cfg(test)]
mod tests {
    use crate::Pattern;

    fn printed(text: &str) -> String {
        text.parse::<Pattern>().unwrap().to_string()
    }

    #[test]
    fn block_without_a_gap_is_the_preset_where_it_stands_alone() {
        assert_eq!(printed("block(16,16)"), "block(16,16)");
        assert_eq!(printed(" block( 16, 16 ) # half"), "block(16,16)");
        assert_eq!(printed("block(16,16,25%);"), "block(16,16,25%)");
        assert_eq!(printed("block(16,16) keep 25%"), "block (16,16) keep 25%");
        assert_eq!(
            printed("block(1,1,16) scope (1,2,1) keep 1"),
            "block (1,1,16) scope (1,2,1) keep 1"
        );
        assert_eq!(printed("block (1,2) keep 2"), "block (1,2) keep 2");
        assert_eq!(printed("view (4,8) block(1,2) keep 2"), "view (4,8) block (1,2) keep 2");
    }
}
