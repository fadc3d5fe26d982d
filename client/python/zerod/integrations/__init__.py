# SPDX-License-Identifier: Apache-2.0
"""Other packages with sharded modules: a file for each of them."""
