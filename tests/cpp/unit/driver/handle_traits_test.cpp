// The traits that handles are created with: those that the device promises and supports.
#include "ferro/driver/driver.h"
#include "ferro/driver/error.h"
#include "support/heap_fixture.h"
#include "support/sim_gpu.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

namespace ferro {
namespace handle_traits_test {

using testing::kPageBytes;
using testing::SimGpu;

struct Traits {
  bool descriptor = false;
  bool fabric = false;
  bool rdma = false;

  friend bool operator==(const Traits&, const Traits&) = default;
};

// A simulated GPU behind a driver that promises some traits and supports others.
class HandleTraitsTest : public ::testing::Test {
 protected:
  HandleTraitsTest() {
    promised_ = kept_ = {true, true, true};
    refusal_ = CUDA_ERROR_NOT_PERMITTED;
    asked_.clear();
    api_.fabric_channels = "/proc/self/fd";
    api_.device_get_attribute = get_attribute;
    api_.mem_create = create;
  }

  // Creates one handle and releases it.
  void create_one() {
    const auto handle = driver_.create(kPageBytes);
    ASSERT_TRUE(handle.has_value());
    EXPECT_TRUE(driver_.release(*handle));
  }
  static const std::vector<Traits>& asked() { return asked_; }
  static void forget() { asked_.clear(); }

  static Traits promised_, kept_;
  static CUresult refusal_;

 private:
  static CUresult CUDAAPI get_attribute(int* value, CUdevice_attribute attribute, CUdevice device) {
    ++questions_;
    switch (attribute) {
      case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
        *value = promised_.descriptor ? 1 : 0;
        return CUDA_SUCCESS;
      case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
        *value = promised_.rdma ? 1 : 0;
        return CUDA_SUCCESS;
      case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
        *value = promised_.fabric ? 1 : 0;
        return knows_fabrics_ ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
      default:
        return SimGpu::api().device_get_attribute(value, attribute, device);
    }
  }
  static CUresult CUDAAPI create(CUmemGenericAllocationHandle* out, std::size_t bytes,
                                 const CUmemAllocationProp* properties, unsigned long long flags) {
    const auto types = static_cast<unsigned>(properties->requestedHandleTypes);
    const Traits traits{(types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0,
                        (types & CU_MEM_HANDLE_TYPE_FABRIC) != 0,
                        properties->allocFlags.gpuDirectRDMACapable != 0};
    asked_.push_back(traits);
    if ((traits.descriptor && !kept_.descriptor) || (traits.fabric && !kept_.fabric) ||
        (traits.rdma && !kept_.rdma)) {
      return refusal_;
    }
    CUmemAllocationProp simulated = *properties;
    simulated.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    return SimGpu::api().mem_create(out, bytes, &simulated, flags);
  }

 protected:
  static bool knows_fabrics_;
  static inline std::size_t questions_ = 0;

 private:
  static std::vector<Traits> asked_;

 protected:
  const SimGpu gpu_{8};
  CudaApi api_ = SimGpu::api();
  Driver driver_{api_, 0};
};

Traits HandleTraitsTest::promised_, HandleTraitsTest::kept_;
CUresult HandleTraitsTest::refusal_;
bool HandleTraitsTest::knows_fabrics_ = true;
std::vector<Traits> HandleTraitsTest::asked_;

TEST_F(HandleTraitsTest, AllPromisedTraitsAreRequestedAtOnce) {
  create_one();
  create_one();
  EXPECT_EQ(asked(), (std::vector<Traits>{{true, true, true}, {true, true, true}}));
  EXPECT_TRUE(driver_.exports());
}

TEST_F(HandleTraitsTest, TraitsThatAreNotPromisedAreNotRequested) {
  promised_ = {true, false, false};
  create_one();
  EXPECT_EQ(asked(), (std::vector<Traits>{{true, false, false}}));
}

TEST_F(HandleTraitsTest, AFabricWithoutAChannelIsNotTried) {
  const std::string empty = ::testing::TempDir() + "no_channels";
  std::filesystem::create_directory(empty);
  for (const char* folder : {empty.c_str(), "/proc/self/fd/missing"}) {
    CudaApi api = api_;
    api.fabric_channels = folder;
    Driver driver(api, 0);
    const auto handle = driver.create(kPageBytes);
    ASSERT_TRUE(handle.has_value());
    EXPECT_EQ(asked(), (std::vector<Traits>{{true, false, true}}));
    EXPECT_TRUE(driver.release(*handle));
    forget();
  }
}

TEST_F(HandleTraitsTest, AFabricThatDoesNotWorkIsTriedOnce) {
  kept_.fabric = false;
  create_one();
  create_one();
  EXPECT_EQ(asked(),
            (std::vector<Traits>{{true, true, true}, {true, false, true}, {true, false, true}}));
  EXPECT_TRUE(driver_.exports());
}

TEST_F(HandleTraitsTest, WhereNetworkCardsCannotReachItMemoryIsStillShared) {
  promised_.fabric = false;
  kept_.rdma = false;
  create_one();
  EXPECT_EQ(asked(), (std::vector<Traits>{{true, false, true}, {true, false, false}}));
  EXPECT_TRUE(driver_.exports());
}

TEST_F(HandleTraitsTest, WhereDescriptorsAreForbiddenNetworkCardsStillReachIt) {
  for (const CUresult error : {CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_NOT_SUPPORTED}) {
    refusal_ = error;
    kept_ = {false, false, true};
    Driver driver(api_, 0);
    const auto handle = driver.create(kPageBytes);
    ASSERT_TRUE(handle.has_value());
    EXPECT_EQ(asked().back(), (Traits{false, false, true}));
    EXPECT_FALSE(driver.exports());
    EXPECT_TRUE(driver.release(*handle));
  }
}

TEST_F(HandleTraitsTest, WithoutWorkingTraitsPagesHaveNone) {
  kept_ = {};
  create_one();
  EXPECT_EQ(asked().back(), Traits{});
  EXPECT_FALSE(driver_.exports());
}

TEST_F(HandleTraitsTest, ADriverWithoutFabricsGetsNoRequestForThem) {
  knows_fabrics_ = false;
  create_one();
  knows_fabrics_ = true;
  EXPECT_EQ(asked(), (std::vector<Traits>{{true, false, true}}));
}

TEST_F(HandleTraitsTest, OutOfMemoryLeavesTheTraitsUndecided) {
  kept_ = {};
  refusal_ = CUDA_ERROR_OUT_OF_MEMORY;
  EXPECT_FALSE(driver_.create(kPageBytes).has_value());
  kept_ = {true, true, true};
  create_one();
  EXPECT_EQ(asked(), (std::vector<Traits>{{true, true, true}, {true, true, true}}));
}

TEST_F(HandleTraitsTest, AnyOtherRefusalIsAnError) {
  kept_ = {};
  refusal_ = CUDA_ERROR_INVALID_DEVICE;
  EXPECT_THROW((void)driver_.create(kPageBytes), DriverError);
}

TEST_F(HandleTraitsTest, ADeviceIsAskedOnceAlsoIfNoHandleIsCreated) {
  kept_ = {};
  refusal_ = CUDA_ERROR_OUT_OF_MEMORY;
  EXPECT_EQ(driver_.create(kPageBytes), std::nullopt);
  const std::size_t before = questions_;
  EXPECT_EQ(driver_.create(kPageBytes), std::nullopt);
  EXPECT_TRUE(driver_.exports());
  EXPECT_EQ(questions_, before);
}

}  // namespace handle_traits_test
}  // namespace ferro
