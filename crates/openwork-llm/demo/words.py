"""The words of the little language, and what its speakers know.

Preferences are logits: tables of normal numbers, drawn once from a fixed seed.
A choice that depends on several things adds their rows, so that P(noun | verb,
adjective) is the softmax of PREFERS[verb] + PREFERS[adjective] over the nouns.
"""

import random
from functools import lru_cache
from math import exp

TABLES_SEED = 20
STRENGTH = 1.3  # standard deviation of a preference, in nats

WOMEN = "Anna Clara Dora Emma Freya Greta Helen Irene Julia Karin Laura Maria Nora Olga Petra Rosa"
MEN = "Adam Boris Carl David Emil Felix Georg Hugo Ivan Jonas Leon Martin Noah Oscar Paul Simon"
NAMES = {name: "f" for name in WOMEN.split()} | {name: "m" for name in MEN.split()}

# Nouns that act: singular -> (plural, gender).
BEINGS = {
    **{one: (one + "s", "f") for one in "queen mother sister aunt girl nun singer".split()},
    "witch": ("witches", "f"),
    **{one: (one + "s", "m") for one in "king father brother uncle boy wizard monk prince".split()},
    **{one: (one + "s", "n") for one in "dog cat horse bear owl crow goat hen bee".split()},
    "fox": ("foxes", "n"),
    "goose": ("geese", "n"),
    "mouse": ("mice", "n"),
    "wolf": ("wolves", "n"),
}
# Nouns that do not.
THINGS = {
    **{
        one: one + "s"
        for one in "apple book lamp key coin ring boat bell cup hat rope stone bottle basket letter map "
        "mirror candle chair table flower drum flute sword shoe egg plum pear button nail pen stamp "
        "ticket jar cake spoon".split()
    },
    "knife": "knives",
    "loaf": "loaves",
    "box": "boxes",
    "brush": "brushes",
}
PLURALS = {one: plural for one, (plural, _) in BEINGS.items()} | THINGS
GENDERS = {one: gender for one, (_, gender) in BEINGS.items()} | NAMES
NOUNS = list(PLURALS)

# Verbs, as plural -> singular.
ON = {
    **{v: v + "s" for v in "see find lose hide want take bring break clean paint sell draw love fear".split()},
    **{v: v + "s" for v in "follow hear pull hold drop throw guard".split()},
    "carry": "carries",
    "watch": "watches",
    "push": "pushes",
}
ALONE = {
    **{v: v + "s" for v in "sleep run sing laugh dance wait swim rest fall smile shout listen dream".split()},
    **{v: v + "s" for v in "whisper tremble rise".split()},
    "cry": "cries",
}
TELL = {v: v + "s" for v in "say think know hope claim".split()}

ADJECTIVES = (
    "old young small big red blue green white black golden broken clean heavy light quiet proud lazy "
    "clever hungry cold warm strange round tiny"
).split()
ADVERBS = "slowly quickly gladly often rarely sadly calmly again".split()
PREPOSITIONS = "in near behind beyond".split()
PLACES = (
    "garden forest river kitchen tower market castle valley harbour mill cellar bridge field church "
    "barn cave"
).split()
CITIES = (
    "Oslo Paris Rome Lisbon Vienna Prague Athens Dublin Cairo Lima Quito Delhi Tokyo Sydney Boston Havana"
).split()
JOBS = (
    "baker miller doctor teacher tailor painter fisher hunter clerk smith actor engineer judge pilot "
    "sailor weaver"
).split()
COLORS = "red blue green white black golden".split()
NUMBERS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty"
).split()

_random = random.Random(TABLES_SEED)


def _row(width):
    return [_random.gauss(0.0, STRENGTH) for _ in range(width)]


def _rows(keys, width):
    return {key: _row(width) for key in keys}


# What follows what.
VERBS = list(ON) + list(ALONE)
DOES = _rows(list(NAMES) + list(BEINGS), len(VERBS))  # subject -> verb
PREFERS = _rows(list(ON) + ADJECTIVES, len(NOUNS))  # verb, adjective -> noun
LOOKS = _rows(["subject", *ON], len(ADJECTIVES))  # place in the clause -> adjective
MANNER = _rows(VERBS, len(ADVERBS))  # verb -> adverb
WHERE = _rows(VERBS, len(PLACES))  # verb -> place
AT = _rows(PLACES, len(PREPOSITIONS))  # place -> preposition
IS = _rows(list(NAMES) + list(BEINGS), len(ADJECTIVES))  # subject -> quality
TELLS = _rows(list(NAMES) + list(BEINGS), len(TELL))  # subject -> verb of telling

# Facts: certain, and to be learned by heart.
FACTS = {
    name: {
        "city": _random.choice(CITIES),
        "job": _random.choice(JOBS),
        "pet": _random.choice([one for one, (_, gender) in BEINGS.items() if gender == "n"]),
        "color": _random.choice(COLORS),
        "age": _random.randrange(20, 80),
        "friend": _random.choice([other for other in NAMES if other != name]),
        "thing": _random.choice(list(THINGS)),
    }
    for name in NAMES
}
KNOWN_FOR = {city: _random.choice(list(THINGS)) for city in CITIES}


def softmax(items, *rows):
    """A table of (item, probability): the softmax of the sum of `rows`."""
    logits = [sum(column) for column in zip(*rows)]
    top = max(logits)
    weights = [exp(logit - top) for logit in logits]
    total = sum(weights)
    return [(item, weight / total) for item, weight in zip(items, weights)]


def even(items):
    """A table in which all items are equally likely."""
    items = list(items)
    return [(item, 1 / len(items)) for item in items]


@lru_cache(maxsize=None)
def table(kind, *given):
    """The table of a choice, by name."""
    if kind == "verb":
        return softmax(VERBS, DOES[given[0]])
    if kind == "acts on":
        return softmax(list(ON), DOES[given[0]][: len(ON)])
    if kind == "tells":
        return softmax(list(TELL), TELLS[given[0]])
    if kind == "noun":
        return softmax(NOUNS, *(PREFERS[key] for key in given))
    if kind == "being":  # an adjective, or nothing
        rows = [PREFERS[key][: len(BEINGS)] for key in given]
        return softmax(list(BEINGS), *rows) if rows else even(BEINGS)
    if kind == "adjective":
        return softmax(ADJECTIVES, LOOKS[given[0]])
    if kind == "quality":
        return softmax(ADJECTIVES, IS[given[0]])
    if kind == "adverb":
        return softmax(ADVERBS, MANNER[given[0]])
    if kind == "place":
        return softmax(PLACES, WHERE[given[0]])
    if kind == "preposition":
        return softmax(PREPOSITIONS, AT[given[0]])
    raise KeyError(kind)
