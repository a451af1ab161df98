"""``python -m ablate.runner``: a worker process.

What it imports is half a million objects that last as long as it does. To look for garbage among
them takes a fifth of the time of the imports, and a second more at the end of every fork, which
gets pages of its own for it. So nobody looks.
"""

import gc
import sys

gc.disable()

import torch._dynamo  # noqa: E402, F401 - the first optimizer of a process would

from ablate.runner.worker import main  # noqa: E402

gc.freeze()
gc.enable()

if __name__ == "__main__":
    sys.exit(main())
