/* A host in C++: calls, several at once, and a call that fails. */
#include <cstdio>
#include <cstdlib>

#include <naaice_ap2_cpp.h>

#define CHECK(what) do { if (!(what)) { std::fprintf(stderr, "not true: %s (line %d)\n", #what, __LINE__); std::exit(1); } } while (0)

int main() {
  std::vector<std::uint8_t> a(1000), b(1000);
  for (std::size_t at = 0; at < a.size(); at++) {
    a[at] = static_cast<std::uint8_t>(at * 7);
    b[at] = static_cast<std::uint8_t>(at / 3);
  }
  NAAHandler sum(2);
  auto first = sum.invoke<std::uint8_t, 1000>(a, b);
  auto second = sum.invoke<std::uint8_t, 1000>(b, a);
  const auto one = first.get(), two = second.get();
  for (std::size_t at = 0; at < a.size(); at++)
    CHECK(one[at] == static_cast<std::uint8_t>(a[at] + b[at]) && two[at] == one[at]);
  double number = 2.5;
  CHECK((sum.invoke<double, 1>(number).get()[0] == 2.5));
  try {
    NAAHandler(16).invoke<std::uint8_t, 4>(a).get();
    CHECK(false);
  } catch (const NAAError &error) {
    CHECK(error.code() == 0x10);
  }
  try {
    NAAHandler(128).invoke<std::uint8_t, 4>(a).get();
    CHECK(false);
  } catch (const NAAError &error) {
    CHECK(error.code() == 0 && std::string(error.what()).find("function code 128") != std::string::npos);
  }
  std::printf("ok cpp\n");
  return 0;
}
