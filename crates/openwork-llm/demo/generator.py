"""A little language whose entropy is known.

A text is a row of paragraphs, one on each line, each independent of the others.
The grammar below is a program that makes choices (`choose`, from a table of
probabilities) and says words (`say`). Two machines run it:

- `Writer` draws every choice, and so writes a paragraph;
- `Reader` follows every choice that could have written a given paragraph, and
  adds up their probabilities. That sum is the exact probability of the text,
  whether or not the grammar is ambiguous (it is not: `derivations` is always 1).

    python generator.py 400 --seed 7          # writes 400 paragraphs
    python generator.py --read FILE           # the exact nats of a text

Sentences have agreement in number and gender, clauses inside clauses, facts to
be known by heart, counting and arithmetic.
"""

import argparse
import random
import re
import sys
from bisect import bisect
from itertools import accumulate
from math import log

from words import (
    BEINGS, CITIES, FACTS, GENDERS, KNOWN_FOR, NAMES, NUMBERS, ON, ALONE, PLURALS, TELL, THINGS,
    even, table,
)

SHE = {"f": "she", "m": "he", "n": "it", "p": "they"}
HER = {"f": "her", "m": "his", "n": "its", "p": "their"}
HERSELF = {"f": "herself", "m": "himself", "n": "itself", "p": "themselves"}
VERBS = ON | ALONE | TELL
THINGS_EVEN, NAMES_EVEN, CITIES_EVEN = even(THINGS), even(NAMES), even(CITIES)
DEEPEST = 3  # clauses inside clauses
STOP = 0.18  # chance that a paragraph ends after a sentence


def a(word):
    return "an" if word[0] in "aeiou" else "a"


class Subject:
    """Who acts: a head (key of the tables), whether there are several, and their gender."""

    def __init__(self, head, several, gender):
        self.head, self.several = head, several
        self.gender = "p" if several else gender

    def verb(self, verb):
        return verb if self.several else VERBS[verb]


# The grammar. `g` is the machine, `who` the name that the paragraph is about.


def paragraph(g):
    who = g.choose(NAMES_EVEN)
    first = True
    while True:
        sentence(g, who, first)
        first = False
        if g.either(STOP):
            return


KINDS = [
    ("clause", 0.46), ("when", 0.10), ("fact", 0.14), ("city", 0.03), ("shop", 0.12), ("count", 0.06),
    ("sum", 0.07), ("compare", 0.02),
]


def sentence(g, who, first):
    kind = "clause" if first else g.choose(KINDS)
    if kind == "clause":
        clause(g, who, first, 0)
        g.say(".")
    elif kind == "when":
        g.say("when")
        clause(g, who, False, 1)
        g.say(",")
        clause(g, who, False, 1)
        g.say(".")
    else:
        {"fact": fact, "city": city, "shop": shop, "count": count, "sum": add, "compare": compare}[kind](g, who)


def hero(g, who, first=False):
    """The name of the paragraph, or its pronoun once it was named."""
    g.say(who if first or g.either(0.35) else SHE[NAMES[who]])
    return Subject(who, False, NAMES[who])


def clause(g, who, first, depth):
    if first or g.either(0.45):
        subject = hero(g, who, first)
        if depth == 0 and g.either(0.12):
            g.say("and")
            g.say(g.choose(NAMES_EVEN))
            subject = Subject(who, True, None)
    else:
        subject = being(g, depth)
    predicate(g, who, subject, depth)


def being(g, depth):
    """A noun phrase that acts: `three small dogs that the queen follows`."""
    determiner = g.choose([("the", 0.6), ("a", 0.2), ("some", 0.1), ("n", 0.1)])
    head, several = phrase(g, determiner, determiner, "subject", "being", ())
    subject = Subject(head, several, GENDERS[head])
    relative(g, subject, depth, 0.25)
    return subject


def phrase(g, determiner, spoken, looks, kind, given):
    """Determiner, perhaps an adjective, and a noun; every word is said as soon as it is
    known, which keeps the search of the `Reader` narrow."""
    if determiner == "n":
        g.say(NUMBERS[g.choose([(n, 1 / 8) for n in range(2, 10)])])
    elif determiner != "a":
        g.say(spoken)
    if g.either(0.3):
        adjective = g.choose(table("adjective", looks))
        if determiner == "a":
            g.say(a(adjective))
        g.say(adjective)
        given = (*given, adjective)
    several = determiner in ("some", "n") or (determiner != "a" and g.either(0.4))
    noun = g.choose(table(kind, *given))
    if determiner == "a" and len(given) == (kind == "noun"):
        g.say(a(noun))
    g.say(PLURALS[noun] if several else noun)
    return noun, several


def relative(g, subject, depth, chance):
    """`that follows the king`, or `that the king follows`."""
    if depth >= DEEPEST or not g.either(chance):
        return
    g.say("that")
    if g.either(0.5):
        verb = g.choose(table("acts on", subject.head))
        g.say(subject.verb(verb))
        thing(g, subject, verb, depth + 1)
    else:
        other = being(g, depth + 1)
        g.say(other.verb(g.choose(table("acts on", other.head))))


def thing(g, subject, verb, depth):
    """What a verb acts on: `her old ring`, `the dogs that sleep`, or oneself."""
    kind = g.choose([("phrase", 0.8), ("name", 0.12), ("self", 0.08)])
    if kind == "self":
        return g.say(HERSELF[subject.gender])
    if kind == "name":
        return g.say(g.choose(NAMES_EVEN))
    determiner = g.choose([("the", 0.4), ("a", 0.2), ("own", 0.2), ("some", 0.1), ("n", 0.1)])
    spoken = HER[subject.gender] if determiner == "own" else determiner
    noun, several = phrase(g, determiner, spoken, verb, "noun", (verb,))
    if noun in BEINGS:
        relative(g, Subject(noun, several, GENDERS[noun]), depth, 0.25)


def predicate(g, who, subject, depth):
    kind = g.choose([("verb", 0.72), ("is", 0.13), ("tells", 0.15)] if depth < 2 else [("verb", 0.85), ("is", 0.15)])
    if kind == "is":
        g.say("are" if subject.several else "is")
        return g.say(g.choose(table("quality", subject.head)))
    if kind == "tells":
        g.say(subject.verb(g.choose(table("tells", subject.head))))
        g.say("that")
        return clause(g, who, False, depth + 1)
    verb = g.choose(table("verb", subject.head))
    g.say(subject.verb(verb))
    if verb in ON:
        thing(g, subject, verb, depth)
    else:
        if g.either(0.3):
            g.say(g.choose(table("adverb", verb)))
        if g.either(0.4):
            place = g.choose(table("place", verb))
            g.say(g.choose(table("preposition", place)))
            g.say("the")
            g.say(place)


def fact(g, who):
    kind = g.choose(even(["city", "job", "pet", "color", "age", "friend", "thing"]))
    known = FACTS[who][kind]
    if kind in ("color", "thing", "friend"):
        g.say(who + "'s" if g.either(0.35) else HER[NAMES[who]])
        if kind == "color":
            g.say("favorite", "color", "is", known)
        elif kind == "thing":
            g.say("dearest", "thing", "is", a(known), known)
        else:
            g.say("friend", "is", "called", known)
    else:
        hero(g, who)
        if kind == "city":
            g.say("lives", "in", known)
        elif kind == "job":
            g.say("works", "as", a(known), known)
        elif kind == "pet":
            g.say("keeps", a(known), known)
        else:
            g.say("is", str(known), "years", "old")
    g.say(".")


def city(g, _):
    place = g.choose(CITIES_EVEN)
    g.say(place, "is", "known", "for", "its", PLURALS[KNOWN_FOR[place]], ".")


def shop(g, who):
    """`Anna has 12 apples. She finds 7 more and now has 19.`"""
    hero(g, who)
    noun = g.choose(THINGS_EVEN)
    have = g.choose([(n, 1 / 18) for n in range(3, 21)])
    g.say("has", str(have), PLURALS[noun], ".")
    while True:
        hero(g, who)
        if g.either(0.5):
            n = g.choose([(n, 1 / 9) for n in range(1, 10)])
            have += n
            g.say("finds", str(n), "more")
        else:
            n = g.choose([(n, 1 / min(9, have - 1)) for n in range(1, min(9, have - 1) + 1)])
            have -= n
            g.say("gives", str(n), "to", g.choose(NAMES_EVEN))
        g.say("and", "now", "has", str(have), ".")
        if have < 3 or have > 30 or g.either(0.5):
            return


def count(g, who):
    hero(g, who)
    step = 2 if g.either(0.3) else 1
    start = g.choose([(n, 1 / 9) for n in range(1, 10)])
    stop = start + step * g.choose([(n, 1 / 4) for n in range(2, 6)])
    g.say("counts", *["by", "twos"] * (step == 2), "from", NUMBERS[start], "to", NUMBERS[stop], ":")
    for n in range(start, stop + 1, step):
        g.say(NUMBERS[n])
        g.say("," if n < stop else ".")


def add(g, _):
    x = g.choose([(n, 1 / 10) for n in range(1, 11)])
    y = g.choose([(n, 1 / 10) for n in range(1, 11)])
    if g.either(0.5):
        g.say(NUMBERS[x], "plus", NUMBERS[y], "is", NUMBERS[x + y], ".")
    else:
        g.say(NUMBERS[x + y], "minus", NUMBERS[x], "is", NUMBERS[y], ".")


def compare(g, _):
    x = g.choose([(n, 1 / 21) for n in range(21)])
    y = g.choose([(n, 1 / 20) for n in range(21) if n != x])
    g.say(NUMBERS[x], "is", "more" if x > y else "less", "than", NUMBERS[y], ".")


# The machines.


class Machine:
    """Capital letters after a full stop."""

    def __init__(self):
        self.start = True

    def either(self, chance):
        return self.choose(((True, chance), (False, 1 - chance)))

    def say(self, *words):
        for word in words:
            self.put(word[0].upper() + word[1:] if self.start else word)
            self.start = word == "."


class Writer(Machine):
    """Draws every choice."""

    def __init__(self, rng):
        super().__init__()
        self.rng, self.words, self.nats, self.sums = rng, [], 0.0, {}

    def choose(self, options):
        # Tables that are kept are summed once; the rest are short.
        total, drawn = 0.0, self.rng.random()
        if len(options) > 24:
            sums = self.sums.get(id(options))
            if sums is None:
                sums = self.sums[id(options)] = list(accumulate(p for _, p in options)), options
            i = min(bisect(sums[0], drawn), len(options) - 1)
        else:
            for i, (_, p) in enumerate(options):
                total += p
                if drawn < total:
                    break
        item, p = options[i]
        self.nats -= log(p)
        return item

    def put(self, word):
        self.words.append(word)

    def text(self):
        text = "".join(word if word in ".,:" else " " + word for word in self.words)[1:] + "\n"
        self.words, self.start = [], True
        return text


class Wrong(Exception):
    """The paragraph has another word here."""


class More(Exception):
    """A choice that the script does not make yet."""


class Reader(Machine):
    """Makes the choices of a script, and checks each word against those of a paragraph."""

    def __init__(self, words, at, script):
        super().__init__()
        self.words, self.at, self.script, self.made = words, at, script, 0

    def choose(self, options):
        if self.made == len(self.script):
            self.options = options
            raise More
        self.made += 1
        return options[self.script[self.made - 1]][0]

    def put(self, word):
        if self.at == len(self.words) or self.words[self.at] != word:
            raise Wrong
        self.at += 1


def readings(words, at, who):
    """Every way to read a sentence that begins at word `at`: where it ends, and its chance."""
    scripts = [((), 1.0)]
    while scripts:
        script, chance = scripts.pop()
        reader = Reader(words, at, script)
        try:
            sentence(reader, who, at == 0)
        except Wrong:
            continue
        except More:
            scripts += [((*script, i), chance * p) for i, (_, p) in enumerate(reader.options)]
            continue
        yield reader.at, chance


def read(line):
    """The exact nats of one paragraph, and how many derivations it has.

    Sentences depend on the paragraph's name alone, so that chances multiply.
    """
    words = re.findall(r"[A-Za-z']+|[0-9]+|[.,:]", line)
    who = words[0] if words else None
    found = {0: (1 / len(NAMES), 1)} if who in NAMES else {}
    for at in range(len(words)):
        chance, derivations = found.pop(at, (0.0, 0))
        if derivations:
            for end, p in readings(words, at, who):
                before = found.get(end, (0.0, 0))
                p *= chance * (STOP if end == len(words) else 1 - STOP)
                found[end] = (before[0] + p, before[1] + derivations)
    if len(words) not in found:
        raise ValueError(f"not a paragraph of the language: {line!r}")
    chance, derivations = found[len(words)]
    return -log(chance), derivations


def write(rng, paragraphs):
    """Text and its nats, of the choices drawn."""
    machine = Writer(rng)
    parts = []
    for _ in range(paragraphs):
        paragraph(machine)
        parts.append(machine.text())
    return "".join(parts), machine.nats


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("paragraphs", type=int, nargs="?", default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--read", metavar="FILE")
    args = parser.parse_args()
    if args.read:
        found = [read(line) for line in open(args.read, encoding="utf-8")]
        nats, most = sum(n for n, _ in found), max(d for _, d in found)
        print(f"{len(found)} paragraphs, {nats:.6f} nats, at most {most} derivation(s) of any")
    else:
        text, nats = write(random.Random(args.seed), args.paragraphs)
        sys.stdout.write(text)
        print(f"{nats:.6f} nats, {nats / len(text) / log(2):.4f} bits per byte", file=sys.stderr)


if __name__ == "__main__":
    main()
