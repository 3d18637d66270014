"""Found as `horovod` on sys.path, in processes in which install() has not been called yet."""

import sys

import pycollective.horovod

del sys.modules["horovod"]
pycollective.horovod.install()
