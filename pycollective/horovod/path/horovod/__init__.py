"""What Python finds by sys.path as `horovod`, in processes where nobody has called install() yet."""

import sys

import pycollective.horovod

del sys.modules["horovod"]
pycollective.horovod.install()
