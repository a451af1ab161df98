"""``python -m ablate.runner``: a worker process.

What it imports are very many objects that last as long as it does. To look for garbage among them
would slow the imports down, and then the end of every fork, which would get pages of its own for
it. So it is not looked for. The imports take seconds, in which the parent may be killed: before
them the process asks to die with it.
"""

import gc
import sys

from ablate.processes import die_with_writer

if __name__ == "__main__":
    die_with_writer()

gc.disable()

from ablate import lazy_dynamo  # noqa: E402

lazy_dynamo.install()

from ablate.runner.worker import main  # noqa: E402

gc.freeze()
gc.enable()

if __name__ == "__main__":
    sys.exit(main())
