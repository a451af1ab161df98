"""``python -m ablate.runner``: a worker process.

The garbage collector ignores what the imports create: it would slow them down, and its writes would
copy the memory pages that forks share. The imports take seconds, in which the parent may be killed,
or wait for a file system that does not answer, which a stack shows.
"""

import gc
import sys

from ablate.processes import die_with_writer, print_stacks_on_signal

if __name__ == "__main__":
    die_with_writer()
    print_stacks_on_signal()

gc.disable()

from ablate import lazy_dynamo  # noqa: E402

lazy_dynamo.install()

from ablate.runner.worker import main  # noqa: E402

gc.freeze()
gc.enable()

if __name__ == "__main__":
    sys.exit(main())
