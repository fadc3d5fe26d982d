/* SPDX-License-Identifier: Apache-2.0 */
/* test_mac.c - HMAC-SHA-256 by the official vectors: RFC 4231, all seven, and the truncated one to its 16
 * bytes. */
#include "base/mem.h"
#include "server/mac.h"
#include "tests/support/test.h"

#define MOST 160u

/* A text in hexadecimal digits, or one byte that is repeated. */
struct bytes {
	const char *hex;
	uint8_t byte;
	size_t count;
};

static const struct {
	struct bytes key, data;
	const char *mac; /* its first bytes */
} vectors[] = {
        {{NULL, 0x0b, 20},
         {"4869205468657265", 0, 0},
         "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
        {{"4a656665", 0, 0},
         {"7768617420646f2079612077616e7420666f72206e6f7468696e673f", 0, 0},
         "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
        {{NULL, 0xaa, 20},
         {NULL, 0xdd, 50},
         "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
        {{"0102030405060708090a0b0c0d0e0f10111213141516171819", 0, 0},
         {NULL, 0xcd, 50},
         "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"},
        {{NULL, 0x0c, 20},
         {"546573742057697468205472756e636174696f6e", 0, 0},
         "a3b6167473100ee06e0c796c2955552b"},
        {{NULL, 0xaa, 131},
         {"54657374205573696e67204c6172676572205468616e20426c6f636b2d53697a65204b6579202d2048617368204b6579"
          "204669727374",
          0, 0},
         "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
        {{NULL, 0xaa, 131},
         {"5468697320697320612074657374207573696e672061206c6172676572207468616e20626c6f636b2d73697a65206b65"
          "7920616e642061206c6172676572207468616e20626c6f636b2d73697a6520646174612e20546865206b6579206e6565"
          "647320746f20626520686173686564206265666f7265206265696e6720757365642062792074686520484d414320616c"
          "676f726974686d2e",
          0, 0},
         "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"},
};

static size_t expand(const struct bytes *from, uint8_t to[MOST])
{
	size_t count = from->hex ? strlen(from->hex) / 2 : from->count;

	assert_true(count <= MOST);
	for (size_t i = 0; i < count; i++) {
		char digits[3] = {0};

		if (from->hex)
			memcpy(digits, from->hex + 2 * i, 2);
		to[i] = from->hex ? (uint8_t)strtoul(digits, NULL, 16) : from->byte;
	}
	return count;
}

TEST(test_vectors)
{
	for (size_t v = 0; v < ZD_ARRAY_LEN(vectors); v++) {
		const struct bytes expected_hex = {.hex = vectors[v].mac};
		uint8_t key[MOST], data[MOST], expected[MOST], mac[ZD_MAC_BYTES];
		size_t key_bytes = expand(&vectors[v].key, key), count = expand(&vectors[v].data, data);
		size_t expected_bytes = expand(&expected_hex, expected);

		/* Whole, and in two parts, of which one may be empty. */
		for (size_t cut = 0; cut <= count; cut++) {
			const struct zd_mac_part parts[] = {{data, cut}, {data + cut, count - cut}};

			memset(mac, 0, sizeof(mac));
			assert_int_equal(zd_mac(key, key_bytes, parts, 2, mac, NULL), 0);
			assert_memory_equal(mac, expected, expected_bytes);
		}
	}
}

TEST(test_equal)
{
	uint8_t a[ZD_MAC_BYTES], b[ZD_MAC_BYTES];

	memset(a, 0x5a, sizeof(a));
	memcpy(b, a, sizeof(b));
	assert_true(zd_mac_equal(a, b));
	for (size_t bit = 0; bit < 8 * sizeof(a); bit++) {
		b[bit / 8] ^= (uint8_t)(1u << bit % 8);
		assert_false(zd_mac_equal(a, b));
		b[bit / 8] = a[bit / 8];
	}
}
