/*
 * naaice_ap2_cpp.h: the C++ interface of libnaaice (C++20). A call of a function in one line:
 *
 *   NAAHandler handler(2);
 *   std::vector<float> a = ..., b = ...;
 *   std::future<std::vector<float>> sum = handler.invoke<float, 1000>(a, b);
 *
 * The class is that of the NAAICE communication library's header of the same name. Inputs are vectors of numbers, and
 * numbers; the output is a vector of outputSize numbers. Each call has a session of its own (naaice_ap2.h), in a thread of
 * its own. Calls of one handler are carried out one after the other.
 */
#ifndef NAAICE_AP2_CPP_H
#define NAAICE_AP2_CPP_H

#include <naaice_ap2.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

template <typename T>
concept Arithmetic = std::integral<T> || std::floating_point<T>;

template <typename T>
using as_vector = std::vector<typename T::value_type, typename T::allocator_type>;

template <typename T>
concept Vector = std::same_as<T, as_vector<T>>;

/* std::vector<bool> has no array of its elements. */
template <typename T>
concept ArithmeticVector =
    Vector<T> && Arithmetic<typename T::value_type> && !std::same_as<typename T::value_type, bool>;

/* A call that failed. code() is the accelerator's code (enum naa_error), or 0 for an error of the library. */
class NAAError : public std::runtime_error {
public:
  explicit NAAError(const std::string &text, unsigned code = 0) : std::runtime_error(text), code_(code) {}
  unsigned code() const noexcept { return code_; }

private:
  unsigned code_;
};

class NAAHandler {
public:
  explicit NAAHandler(std::size_t fncode) : fncode(fncode), lock(std::make_shared<std::mutex>()) {}

  /*
   * Calls the function. The inputs must live, and must not change, until the future is ready; the future's destructor waits
   * for it. get() throws NAAError if the call failed.
   */
  template <typename outputT, std::size_t outputSize, typename... inputTs>
    requires(Arithmetic<outputT> && !std::same_as<outputT, bool> && outputSize > 0 &&
             ((ArithmeticVector<inputTs> || Arithmetic<inputTs>) && ...))
  std::future<std::vector<outputT>> invoke(inputTs &...args) {
    std::vector<naa_param_t> inputs{region(args)...};
    return std::async(std::launch::async, call<outputT>, fncode, lock, std::move(inputs), outputSize);
  }

private:
  std::size_t fncode;
  std::shared_ptr<std::mutex> lock;

  /* Ends the session in any case. */
  struct Session {
    naa_handle handle{};
    bool is_open = false;
    ~Session() {
      if (is_open)
        naa_finalize(&handle);
    }
  };

  template <ArithmeticVector T> static naa_param_t region(T &values) {
    return naa_param_t{values.data(), values.size() * sizeof(typename T::value_type), false};
  }

  template <Arithmetic T> static naa_param_t region(T &value) { return naa_param_t{&value, sizeof(T), false}; }

  static void check(int returned) {
    if (returned != 0)
      throw NAAError(naaice_last_error());
  }

  template <typename outputT>
  static std::vector<outputT> call(std::size_t fncode, std::shared_ptr<std::mutex> lock,
                                   std::vector<naa_param_t> inputs, std::size_t count) {
    const std::lock_guard<std::mutex> locked(*lock);
    if (fncode > UINT32_MAX)
      throw NAAError("the function code exceeds 32 bits");
    std::vector<outputT> output(count);
    naa_param_t outputs[] = {region(output)};
    Session session;
    check(naa_create(static_cast<naa_function_code_t>(fncode), inputs.data(), static_cast<unsigned>(inputs.size()),
                     outputs, 1, &session.handle));
    session.is_open = true;
    naa_status status;
    check(naa_invoke(&session.handle));
    check(naa_wait(&session.handle, &status));
#if NAAICE_INTERFACE == 1
    const unsigned code = static_cast<unsigned>(status.naa_error);
#else
    const unsigned code = status.user_immediate;
#endif
    if (code != NAA_SUCCESS)
      throw NAAError("the accelerator returned code " + std::to_string(code), code);
    return output;
  }
};

#endif
