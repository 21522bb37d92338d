"""llama.cpp: its library, driven by a small program, because it has no Python interface that lets
sequences be kept between calls. Times are taken inside the program, llamacpp_steps.cpp."""

import subprocess

from serve import Options, serve


class LlamaCpp:
    def __init__(self, options: Options) -> None:
        folder = options.peers / "llamacpp"
        model = options.peers / "models" / f"{options.model}.gguf"
        command = [folder / "steps", model, options.threads, options.longest]
        self.program = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        if self.program.stdout.readline() != "ready\n":
            raise RuntimeError(f"{command[0]} did not start")
        self.version = (folder / "version").read_text().strip()

    def prefill(self, tokens: int) -> float:
        return self._ask(f"prefill {tokens} 0")

    def decode(self, batch: int, context_tokens: int) -> float:
        return self._ask(f"decode {batch} {context_tokens}")

    def _ask(self, step: str) -> float:
        print(step, file=self.program.stdin, flush=True)
        return float(self.program.stdout.readline())


if __name__ == "__main__":
    serve(LlamaCpp)
