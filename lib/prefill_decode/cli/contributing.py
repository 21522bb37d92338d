"""Contributing: the verb that begins a claim's notebook."""

import argparse

from prefill_decode.cli.shared import FINE, project_of


def new(options: argparse.Namespace) -> int:
    """Begin a claim: its notebook as a skeleton that runs, in the table of contents."""
    from prefill_decode.book import new_chapter

    project = project_of(options)
    written = new_chapter(project, options.claim, options.after, options.title)
    for path in written:
        print(path.relative_to(project.root))
    print("\nThe links of its neighbours have turned to it; read whether the words still fit.")
    print(f"Every TODO in {written[0].name} wants words or another choice. It runs as it is:")
    print(f"    prefill-decode run {options.claim} --budget 1 -p model_name=smollm2-135m")
    return FINE


def add_new(added: argparse.ArgumentParser) -> None:
    added.add_argument(
        "claim", metavar="CLAIM", help="a sentence in small letters: speculation_needs_slack"
    )
    added.add_argument("--after", metavar="CHAPTER", help="the chapter that it follows (the last)")
    added.add_argument("--title", help="of the chapter (the claim's words)")
