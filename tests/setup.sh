#!/bin/sh
# Installs what the tests need into the environment whose programs lie in $BIN: by uv, which takes a fifth of pip's
# time, and by pip where uv cannot (an index that only pip's configuration knows).
# torch: the pinned release where the index has a small CPU build for this Python (3.11 here), or with TORCH=1;
# elsewhere the tests use a torch that is already there, or skip and say so.
set -eu
$BIN/python -m pip install -q --disable-pip-version-check -c constraints/tests.txt uv
export UV_FIND_LINKS="${UV_FIND_LINKS:-${PIP_FIND_LINKS:-}}"
set -- -q -c constraints/tests.txt -e . --group lint --group test
if [ "${TORCH:-}" = 1 ]; then
  set -- "$@" torch numpy
fi
if [ "${BROWSER:-}" = 1 ] || command -v chromium >/dev/null 2>&1; then
  set -- "$@" --group browser
fi
# Not compiled ahead, which takes a minute: the tests import a tenth of it, and keep what they compiled.
$BIN/uv pip install --python "$BIN/python" "$@" ||
  $BIN/python -m pip install --disable-pip-version-check "$@"
