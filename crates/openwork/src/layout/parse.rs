//! The text form of tuples, coordinates, layouts and tilers.
//!
//! ```text
//! term  = atom [ ":" atom ]
//! atom  = integer | "_" | "(" terms ")" | "<" terms ">"
//! terms = [ term { "," term } [ "," ] ]
//! ```
//!
//! One grammar serves all four; turning the tree into one of them says which
//! of its forms that one takes. Depth, length and number of entries are
//! limited here, so that all later recursion is shallow and all later loops
//! are short.

use super::error::clip;
use super::{Coord, IntTuple, Layout, LayoutError, Tiler};
use std::str::FromStr;

/// The maximum depth of brackets.
pub const MAX_DEPTH: usize = 64;
/// The maximum length of text in bytes.
pub const MAX_TEXT: usize = 1 << 16;
/// The maximum number of entries (numbers, `_` and brackets).
pub const MAX_ENTRIES: usize = 4096;

/// A piece of text and where it starts.
struct Node {
    at: usize,
    kind: Kind,
}

enum Kind {
    Keep,
    Int(i64),
    Round(Vec<Node>),
    Angle(Vec<Node>),
    Pair(Box<Node>, Box<Node>),
}

struct Parser {
    chars: Vec<char>,
    at: usize,
    entries: usize,
}

fn read(text: &str) -> Result<(Parser, Node), LayoutError> {
    if text.len() > MAX_TEXT {
        return Err(LayoutError::TooLong { length: text.len(), limit: MAX_TEXT });
    }
    let mut parser = Parser { chars: text.chars().collect(), at: 0, entries: 0 };
    let node = parser.term(0)?;
    match parser.peek() {
        None => Ok((parser, node)),
        Some(_) => Err(parser.expected("the end of the text")),
    }
}

impl Parser {
    /// The next character that is not a space, without consuming it.
    fn peek(&mut self) -> Option<char> {
        while self.chars.get(self.at).is_some_and(|c| c.is_whitespace()) {
            self.at += 1;
        }
        self.chars.get(self.at).copied()
    }

    /// Takes the next character if it is `wanted`.
    fn take(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        self.at += usize::from(found);
        found
    }

    fn expected(&mut self, expected: &'static str) -> LayoutError {
        let found = self.peek().map_or("the end".into(), |c| format!("'{}'", c.escape_debug()));
        self.error(self.at, expected, found)
    }

    fn error(&self, at: usize, expected: &'static str, found: String) -> LayoutError {
        // A window around the place, so that long text stays readable.
        let start = at.saturating_sub(40);
        let end = (at + 20).min(self.chars.len());
        let mut text: String = self.chars[start..end].iter().collect();
        if start > 0 {
            text.insert_str(0, "..");
        }
        if end < self.chars.len() {
            text.push_str("..");
        }
        LayoutError::Syntax { at: at + 1, text: text.escape_debug().to_string(), expected, found }
    }

    fn term(&mut self, depth: usize) -> Result<Node, LayoutError> {
        let left = self.atom(depth)?;
        if !self.take(':') {
            return Ok(left);
        }
        let right = self.atom(depth)?;
        Ok(Node { at: left.at, kind: Kind::Pair(Box::new(left), Box::new(right)) })
    }

    fn atom(&mut self, depth: usize) -> Result<Node, LayoutError> {
        let next = self.peek();
        let at = self.at;
        self.entries += 1;
        if self.entries > MAX_ENTRIES {
            return Err(LayoutError::TooMany { at: at + 1, limit: MAX_ENTRIES });
        }
        let kind = match next {
            Some('_') => {
                self.at += 1;
                Kind::Keep
            }
            Some('(') => Kind::Round(self.terms(depth, ')', "',' or ')'")?),
            Some('<') => Kind::Angle(self.terms(depth, '>', "',' or '>'")?),
            Some(c) if c.is_ascii_digit() || c == '-' => Kind::Int(self.integer()?),
            _ => return Err(self.expected("a number, '_', '(' or '<'")),
        };
        Ok(Node { at, kind })
    }

    /// The terms between the bracket at the current place and `close`.
    fn terms(
        &mut self,
        depth: usize,
        close: char,
        or: &'static str,
    ) -> Result<Vec<Node>, LayoutError> {
        if depth == MAX_DEPTH {
            return Err(LayoutError::TooDeep { at: self.at + 1, limit: MAX_DEPTH });
        }
        self.at += 1;
        let mut terms = Vec::new();
        while !self.take(close) {
            terms.push(self.term(depth + 1)?);
            if !self.take(',') && self.peek() != Some(close) {
                return Err(self.expected(or));
            }
        }
        Ok(terms)
    }

    fn integer(&mut self) -> Result<i64, LayoutError> {
        let start = self.at;
        self.at += usize::from(self.chars[start] == '-');
        let digits = self.at;
        while self.chars.get(self.at).is_some_and(char::is_ascii_digit) {
            self.at += 1;
        }
        if digits == self.at {
            return Err(self.expected("digits after '-'"));
        }
        let text: String = self.chars[start..self.at].iter().collect();
        text.parse().map_err(|_| LayoutError::Number { at: start + 1, digits: clip(text) })
    }

    fn refuse(&self, node: &Node, expected: &'static str) -> LayoutError {
        let found = match node.kind {
            Kind::Keep => "'_'",
            Kind::Int(_) => "a number",
            Kind::Round(_) => "a tuple",
            Kind::Angle(_) => "a tiler",
            Kind::Pair(..) => "a layout",
        };
        self.error(node.at, expected, found.into())
    }

    fn tuple(&self, node: &Node) -> Result<IntTuple, LayoutError> {
        match &node.kind {
            Kind::Int(n) => Ok(IntTuple::Int(*n)),
            Kind::Round(terms) => terms.iter().map(|term| self.tuple(term)).collect(),
            _ => Err(self.refuse(node, "a number or a tuple of numbers")),
        }
    }

    fn coord(&self, node: &Node) -> Result<Coord, LayoutError> {
        match &node.kind {
            Kind::Keep => Ok(Coord::Keep),
            Kind::Int(n) => Ok(Coord::Int(*n)),
            Kind::Round(terms) => terms
                .iter()
                .map(|term| self.coord(term))
                .collect::<Result<_, _>>()
                .map(Coord::Tuple),
            _ => Err(self.refuse(node, "a number, '_' or a tuple of them")),
        }
    }

    fn layout(&self, node: &Node) -> Result<Layout, LayoutError> {
        match &node.kind {
            Kind::Pair(shape, stride) => Layout::new(self.tuple(shape)?, self.tuple(stride)?),
            Kind::Int(_) | Kind::Round(_) => Layout::column_major(self.tuple(node)?),
            _ => Err(self.refuse(node, "a layout like (4,8):(1,4)")),
        }
    }

    fn tiler(&self, node: &Node) -> Result<Tiler, LayoutError> {
        match &node.kind {
            Kind::Keep => Ok(Tiler::Keep),
            Kind::Int(_) | Kind::Pair(..) => self.layout(node).map(Tiler::Layout),
            Kind::Round(terms) | Kind::Angle(terms) => terms
                .iter()
                .map(|term| self.tiler(term))
                .collect::<Result<_, _>>()
                .map(Tiler::Modes),
        }
    }
}

impl FromStr for IntTuple {
    type Err = LayoutError;
    fn from_str(text: &str) -> Result<Self, LayoutError> {
        read(text).and_then(|(parser, node)| parser.tuple(&node))
    }
}

impl FromStr for Coord {
    type Err = LayoutError;
    fn from_str(text: &str) -> Result<Self, LayoutError> {
        read(text).and_then(|(parser, node)| parser.coord(&node))
    }
}

impl FromStr for Layout {
    type Err = LayoutError;
    /// Reads `(2,3):(1,2)`; without strides the layout is column-major.
    fn from_str(text: &str) -> Result<Self, LayoutError> {
        read(text).and_then(|(parser, node)| parser.layout(&node))
    }
}

impl FromStr for Tiler {
    type Err = LayoutError;
    fn from_str(text: &str) -> Result<Self, LayoutError> {
        read(text).and_then(|(parser, node)| parser.tiler(&node))
    }
}
