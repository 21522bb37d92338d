"""prefill_decode: the library behind the book that measures prefill and decode on its own machine.

Importing it costs nothing: torch is loaded only by the parts that run or time a model.
"""

__version__ = "0.1.0"
