"""Prompts: random ones of a wanted length, no two alike, so that no cache of prefixes helps.

A server counts its tokens: words are converted by the line tokens = fixed + slope x words, which
two probes of the server give. Prompts of token ids have the wanted length exactly.

Ignores: what the words mean, and that other words need other numbers of tokens: the real lengths,
         which usage reports, are printed beside the wanted ones.
"""

import random
from dataclasses import dataclass
from math import isfinite

COMMON_WORDS = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work government "
    "number night point home water room mother area money story fact month lot right study book "
    "eye job word business issue side kind head house service friend father power hour game line "
    "end member law car city name team minute idea body back parent face others level office door "
    "health person art war history party result change morning reason research girl guy moment "
    "air teacher force education"
)
WORDS = COMMON_WORDS.split()
LEAST_ID, MOST_ID = 3, 58  # ids that every vocabulary has


@dataclass(frozen=True)
class Prompts:
    """Makes the prompt of each request; `ids` makes them of token ids."""

    seed: int
    ids: bool = False
    fixed_tokens: float = 0.0  # that a server adds, such as a chat's template
    tokens_per_word: float = 1.0

    def prompt(self, name: str, tokens: int) -> str | list[int]:
        """The prompt of the request called `name`: the same again for the same seed."""
        dice = random.Random(f"prompt {name} {self.seed}")
        if self.ids:
            return [dice.randint(LEAST_ID, MOST_ID) for _ in range(tokens)]
        num_words = round((tokens - self.fixed_tokens) / self.tokens_per_word)
        return " ".join(dice.choices(WORDS, k=max(1, num_words)))


def calibrated(seed: int, first: tuple[int, int], second: tuple[int, int] | None = None) -> Prompts:
    """Prompts for a server that counted (words, tokens) in one or two probes."""
    (words, tokens), slope = first, first[1] / first[0]
    if second is not None and second[0] != words:
        slope = (tokens - second[1]) / (words - second[0])
        if isfinite(slope) and slope > 0:
            return Prompts(seed, False, tokens - slope * words, slope)
    return Prompts(seed, False, 0.0, max(first[1], 1) / first[0])
