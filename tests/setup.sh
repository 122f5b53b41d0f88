#!/bin/sh
# Installs what the tests need into the environment whose programs lie in $BIN.
# torch: the pinned release where the index has a small CPU build for this Python (3.11 here), or with TORCH=1;
# elsewhere the tests use a torch that is already there, or skip and say so.
set -eu
pip="$BIN/python -m pip install -q --disable-pip-version-check"
if [ "${TORCH:-}" = 1 ]; then
  $pip -c constraints/tests.txt torch numpy
fi
$pip -c constraints/tests.txt -e . --group lint --group test
if [ "${BROWSER:-}" = 1 ] || command -v chromium >/dev/null 2>&1; then
  $pip -c constraints/tests.txt --group browser
fi
