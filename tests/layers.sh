#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# No layer includes upward. Prints each breach; exits 1 if there is one.
cd "$(dirname "$0")/.." || exit 2
bad=0
deny() { # folder, pattern of what it may not include, why
	if grep -rnE "#include \"($2)" --include='*.[ch]' "$1" 2>/dev/null; then
		echo "layers: $1 $3" >&2
		bad=1
	fi
}
deny include '.*"' 'includes nothing of the project'
deny daemon/base 'core/|backend/|io/|api/|daemon/|client/' 'is the lowest layer'
deny proto 'core/|backend/|io/|api/|daemon/(core|backend|io|api)|client/' 'knows only base'
deny daemon/core 'backend/|io/|api/|client/|proto/zerod.pb|proto/frame|uv\.h' 'is pure'
deny daemon/backend 'io/|api/|client/' 'knows only core and base'
deny daemon/io 'api/|client/' 'knows only backend, core, proto and base'
deny daemon/api 'client/|config\.h"|service\.h"' 'is below the daemon itself'
deny client 'core/|backend/|io/|api/|daemon/(core|backend|io|api)' 'knows only include, proto and base'
grep -rnE '#include <uv.h>|<time.h>|<pthread.h>|<unistd.h>|<sys/socket.h>' daemon/core && { echo 'layers: the core is pure' >&2; bad=1; }
grep -rlE 'cuda\.h|nccl\.h' daemon client --include='*.[ch]' 2>/dev/null | grep -v 'daemon/backend/cuda_\|client/cuda' && bad=1
exit $bad
