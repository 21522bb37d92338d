"""Fleet claims: what the chapters about fleets simulate, seed by seed, and what physics expects.

Nothing here is timed: hardware is that of data sheets, steps are priced by the roofline. Only what
`foreseeing` says of requests rests on steps that were timed, and is held against replays. A seed
draws arrivals and lengths anew; all that is compared within a seed gets the same ones, as rounds of
a measurement do, and intervals are taken over seeds.
"""

from prefill_decode.fleet_claims.seeds import seeds_for

__all__ = ["seeds_for"]
