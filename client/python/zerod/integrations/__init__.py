# SPDX-License-Identifier: Apache-2.0
"""What other packages have to know of sharded modules. Each file is for one of them."""
