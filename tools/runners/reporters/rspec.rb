
# Run files of rspec. Without this, one file that cannot be loaded keeps all other files from running.
M3_LAUNCH.call("rspec/core", %w[rspec/expectations rspec/mocks]) do |write, _known, files, watched, timed, relative|
  RSpec::Core::Runner.disable_autorun!
  canaries = {}
  ran = passed = 0
  loading = nil
  red = []

  place_of = lambda do |example|
    groups = example.example_group.parent_groups.reverse
    name = example.metadata[:m3_name] ||=
      if example.metadata[:description_args].to_a.empty? # rspec's own name has the line or the values in it
        unnamed = example.example_group.examples.select { |other| other.metadata[:description_args].to_a.empty? }
        "(unnamed) ##{unnamed.index(example).to_i + 1}"
      else
        example.metadata[:description_args].join(" ")
      end
    [relative.call(example.metadata[:rerun_file_path]), groups.map { |group| group.description.to_s } + [name]]
  end
  listener = Object.new
  listener.define_singleton_method(:example_started) do |note|
    write.call("start", *place_of.call(note.example)) unless canaries[note.example]
  end
  { example_passed: "passed", example_failed: "failed", example_pending: "skipped" }.each do |event, outcome|
    listener.define_singleton_method(event) do |note|
      example = note.example
      if canaries[example]
        ran += 1
        passed += 1 if outcome == "passed"
        next
      end
      error = example.execution_result.exception
      text = outcome == "failed" && error ? "#{error.class}: #{error.message}\n#{Array(error.backtrace).first(5).join("\n")}" : ""
      write.call("result", *place_of.call(example), outcome, text)
    end
  end

  RSpec::Core::Configuration.prepend(Module.new do
    define_method(:load_file_handling_errors) do |method, file|
      loading = file
      super(method, file)
    rescue SystemExit # rspec has reported it, and would end here
      raise unless method == :load
    ensure
      loading = nil
    end
  end)
  RSpec::Core::Reporter.prepend(Module.new do
    define_method(:notify_non_example_exception) do |error, description|
      text = "#{description}\n#{error.class}: #{error.message}\n#{Array(error.backtrace).first(5).join("\n")}"
      if loading
        file = relative.call(loading)
        red << file
        write.call("result", file, [], "error", text)
      else
        frames = Array(error.backtrace).map { |frame| relative.call(frame[/\A[^:]+/]) }
        write.call("result", frames.find { |path| !path.start_with?("/") } || ".", [description], "error", text)
      end
      super(error, description)
    end
  end)
  RSpec::Core::Example.prepend(Module.new do
    define_method(:run) { |*arguments| timed.call { super(*arguments) } }
  end)

  add_canaries = lambda do
    RSpec.world.example_groups.first(60).each do |group|
      like = group.descendants.flat_map(&:examples).first
      next unless like

      owner = like.example_group
      first = rand(2..900)
      second = first + rand(1..90)
      file, line = like.metadata[:absolute_file_path], like.metadata[:line_number]
      body = "respond_to?(:expect) ? expect(#{first}).to(eq(#{second})) : raise('#{first} is not #{second}')"
      block = TOPLEVEL_BINDING.eval("proc { #{body} }", file, line)
      canaries[owner.example("#{like.description} again", caller: ["#{file}:#{line}"], &block)] = true
    end
  end
  runner = Class.new(RSpec::Core::Runner) do
    define_method(:setup) do |errors, output|
      configure(errors, output)
      @configuration.reporter.register_listener(listener, :example_started, :example_passed, :example_failed, :example_pending)
      return if RSpec.world.wants_to_quit # a helper could not be loaded

      @configuration.load_spec_files
      RSpec.world.wants_to_quit = RSpec.world.rspec_is_quitting = false # only these files are red
      add_canaries.call
    end
  end
  deciding = [RSpec::Core::Example, RSpec::Core::Reporter, RSpec::Core::Runner, RSpec::Core::Example::ExecutionResult]
  if defined?(RSpec::Expectations)
    deciding += [RSpec::Expectations, RSpec::Expectations::ExpectationTarget, RSpec::Expectations::ExpectationHelper,
                 RSpec::Expectations::PositiveExpectationHandler, RSpec::Expectations::NegativeExpectationHandler,
                 RSpec::Matchers]
  end
  before = watched.call(deciding, [])
  options = RSpec::Core::ConfigurationOptions.new(["--order", "defined", "--no-fail-fast", "--no-color", *files])
  runner.new(options).run($stderr, $stdout)
  after = watched.call(deciding, [])
  before.reject { |name, method| after[name] == method }.keys.first(20).each do |name|
    write.call("tampering", "#{name} was replaced while the tests ran")
  end
  (files - red).each { |file| write.call("unit", file) } unless RSpec.world.wants_to_quit
  write.call("canaries", canaries.size, ran, passed)
  write.call("end")
end
